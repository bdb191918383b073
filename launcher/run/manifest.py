"""Read and verify a checkpoint's manifest, which lists its files byte for byte.

``manifest.json`` inside ``step-00001200/``: {version, step, world_size, attempt, round, t, reason, hash_name, bytes,
files: [{name, size, hash, rank}], meta: {rank: {...}}}. It is written last; a folder without one is no checkpoint.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.opening import open_regular
from launcher.run.asking import OwnError, exists, load_object
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
    with os.fdopen(open_regular(path, follow=True), "rb", buffering=0) as f:
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


def _is_inside(name: str) -> bool:
    """Return whether ``name`` is that of a file in the checkpoint's folder or below: neither absolute nor up and out of it."""
    return bool(name) and not name.startswith("/") and ".." not in name.split("/")


def stored_bytes(manifest: dict[str, Any]) -> int:
    """Return the size of the checkpoint, as its manifest says; 0 where it does not."""
    found = manifest.get("bytes")
    return found if type(found) is int and found > 0 else 0


def why_damaged(folder: Path, *, content: bool = True, halted: Callable[[], bool] = lambda: False) -> str | None:
    """Return what is wrong with the checkpoint in ``folder``, or None when it verifies.

    ``content=False`` compares names and sizes alone, without reading the files. Raises OSError when the file system did not
    let it be read, which is no damage, OwnError where this Python lacks the hash, and InterruptedError once ``halted``.
    """
    manifest = _sound(load_object(folder / MANIFEST, folder))
    if manifest is None:
        return "no readable manifest"
    hash_name = str(manifest.get("hash_name", HASH_NAME))
    if content and hash_name == "xxh3_64" != HASH_NAME:
        text = f"the checkpoint {folder.name} can only be verified with xxhash, which this Python lacks: pip install xxhash there"
        raise OwnError(errno.ENOPKG, text)
    for entry in manifest["files"]:
        try:
            name, size, digest = str(entry["name"]), int(entry["size"]), str(entry["hash"])
        except (KeyError, TypeError, ValueError, OverflowError):
            return "a malformed manifest"
        if not _is_inside(name):
            return f"its manifest names {name!r}, which is no file of the checkpoint"
        path = folder / name
        try:
            if path.is_symlink() and not path.exists():
                return f"{name} is a link to nothing"
            if not exists(path, folder):
                return f"{name} is missing"
            found = path.stat()
            if not stat.S_ISREG(found.st_mode):
                return f"{name} is not a regular file"
            if found.st_size != size:
                return f"{name} has {found.st_size} bytes instead of {size}"
            if content and hash_file(path, hash_name, halted) != digest:
                return f"{name} has changed (its checksum differs)"
        except ValueError as error:
            return f"{name} cannot be read: {error}"
    return None
