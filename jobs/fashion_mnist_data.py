"""Fashion-MNIST: found where the Debian package puts it, or downloaded once with progress and checksums.

Checksums are of the *uncompressed* files: Debian packs the same data anew, so its archives differ from the
originals byte by byte while what they hold does not.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

SOURCES = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
)
"""Where the files are downloaded from, in order."""

FILES = {
    "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
"""Each file and the sha256 of what it holds, uncompressed."""

PACKAGED = Path("/usr/share/datasets/fashion-mnist")
"""Debian's and Ubuntu's package dataset-fashion-mnist."""


def cache() -> Path:
    """Where downloads are kept: below the user's cache folder, which compute nodes usually share."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddp-launcher" / "fashion-mnist"


def find() -> Path | None:
    """The folder that holds all four files, or None: $FASHION_MNIST, the Debian package, the cache."""
    named = os.environ.get("FASHION_MNIST")
    folders = [Path(named)] if named else [PACKAGED, cache()]
    return next((f for f in folders if all((f / name).is_file() for name in FILES)), None)


def ensure(folder: Path | None = None, sources: tuple[str, ...] = SOURCES) -> Path:
    """The folder with the data, downloading into ``folder`` (default: the cache) what is nowhere yet.

    Raises OSError with one sentence when a file can be had from none of ``sources``.
    """
    found = find() if folder is None else None
    if found:
        return found
    folder = folder or cache()
    folder.mkdir(parents=True, exist_ok=True)
    for name, digest in FILES.items():
        if not (folder / name).is_file():
            download(name, digest, folder, sources)
    return folder


def download(name: str, digest: str, folder: Path, sources: tuple[str, ...]) -> None:
    """Fetch one file, check it, and only then give it its name. Raises OSError when no source has it whole."""
    faults = []
    for source in sources:
        part = folder / f".{name}.{os.getpid()}"
        try:
            fetch(source + name, part, progress(name))
            with gzip.open(part) as packed:
                found = hashlib.sha256(packed.read()).hexdigest()
            if found != digest:
                raise OSError(f"its checksum is {found[:12]}…, not {digest[:12]}…")
            os.replace(part, folder / name)
            return
        except (OSError, EOFError) as error:
            faults.append(f"{source}: {error}")
        finally:
            part.unlink(missing_ok=True)
    raise OSError(
        f"{name} could not be downloaded ({'; '.join(faults)}); on Debian or Ubuntu, "
        f"`apt-get install dataset-fashion-mnist` brings it, and FASHION_MNIST=DIR names a copy"
    )


def fetch(url: str, path: Path, report: Callable[[int, int], None]) -> None:
    """Copy ``url`` to ``path``, reporting (bytes so far, bytes in all or 0)."""
    with urllib.request.urlopen(url, timeout=60) as answer, path.open("wb") as file:
        total, done = int(answer.headers.get("Content-Length") or 0), 0
        while chunk := answer.read(1 << 18):
            file.write(chunk)
            done += len(chunk)
            report(done, total)
        if done < total:
            raise OSError(f"the connection ended after {done} of {total} bytes")


def progress(name: str) -> Callable[[int, int], None]:
    """A reporter: a line that grows on a terminal, one line at the end elsewhere."""
    last = 0.0

    def report(done: int, total: int) -> None:
        nonlocal last
        finished = done == total
        if not finished and (not sys.stderr.isatty() or time.monotonic() - last < 0.1):
            return
        last = time.monotonic()
        share = f" ({100 * done // total} %)" if total else ""
        start, end = ("\r", "\n" if finished else "") if sys.stderr.isatty() else ("", "\n")
        print(f"{start}{name}: {done / 1e6:.1f} MB{share}", end=end, file=sys.stderr, flush=True)

    return report


def read_idx(path: Path) -> Tensor:
    """One IDX file of bytes as a uint8 tensor of its own shape. Raises ValueError when it is none."""
    with gzip.open(path) as packed:
        data = bytearray(packed.read())
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is no IDX file of bytes")
    start = 4 + 4 * data[3]
    shape = [int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4)]
    return torch.frombuffer(data, dtype=torch.uint8, offset=start).reshape(shape)


def load(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Images (n, 28, 28) as bytes and labels (n) of ``split``: "train" or "t10k"."""
    images = read_idx(folder / f"{split}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{split}-labels-idx1-ubyte.gz").long()
    return images, labels
