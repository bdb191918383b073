"""Read and verify a checkpoint's manifest, which lists its files byte for byte.

``manifest.json`` inside ``step-00001200/``: {version, step, world_size, attempt, round, t, reason, hash_name, bytes,
files: [{name, size, hash, rank}], meta: {rank: {...}}}. It is written last; a folder without one is no checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.run.asking import exists, load_object
from launcher.run.files import read_object

MANIFEST = "manifest.json"
_CHUNK = 4 * 1024 * 1024

try:
    import xxhash

    HASH_NAME = "xxh3_64"
except ImportError:  # optional on nodes: the environment of the job may lack it
    HASH_NAME = "sha256"


def new_hash(name: str = HASH_NAME) -> Any:
    """Return a hash object with ``update`` and ``hexdigest``. Raises ValueError when this interpreter lacks ``name``."""
    if name == "sha256":
        return hashlib.sha256()
    if name == "xxh3_64" and HASH_NAME == "xxh3_64":
        return xxhash.xxh3_64()
    raise ValueError(f"this interpreter has no {name} (install xxhash)")


def hash_file(path: Path, name: str = HASH_NAME, halted: Callable[[], bool] = lambda: False) -> str:
    """Return the hex digest of a file's content. Raises OSError; InterruptedError once ``halted``."""
    h = new_hash(name)
    with open(path, "rb") as f:
        while chunk := f.read(_CHUNK):
            h.update(chunk)
            if halted():
                raise InterruptedError(f"reading {path} was stopped")
    return str(h.hexdigest())


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Read the manifest of the checkpoint in ``folder``; None when there is no readable one."""
    return _sound(read_object(folder / MANIFEST))


def _sound(value: dict[str, Any] | None) -> dict[str, Any] | None:
    is_sound = value and isinstance(value.get("step"), int) and isinstance(value.get("files"), list)
    return value if is_sound else None


def why_damaged(folder: Path, *, content: bool = True, halted: Callable[[], bool] = lambda: False) -> str | None:
    """Return what is wrong with the checkpoint in ``folder``, or None when it verifies.

    ``content=False`` compares names and sizes alone, without reading the files. Raises OSError when the file system did not
    let it be read, which is no damage, and InterruptedError once ``halted``.
    """
    manifest = _sound(load_object(folder / MANIFEST, folder))
    if manifest is None:
        return "no readable manifest"
    hash_name = str(manifest.get("hash_name", HASH_NAME))
    for entry in manifest["files"]:
        try:
            name, size, digest = str(entry["name"]), int(entry["size"]), str(entry["hash"])
        except (KeyError, TypeError, ValueError):
            return "a malformed manifest"
        path = folder / name
        try:
            if not exists(path, folder):
                return f"{name} is missing"
            found = path.stat().st_size
            if found != size:
                return f"{name} has {found} bytes instead of {size}"
            if content and hash_file(path, hash_name, halted) != digest:
                return f"{name} has changed (its checksum differs)"
        except ValueError as error:
            return f"{name} cannot be read: {error}"
    return None
