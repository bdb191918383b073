"""Durable small files: written whole or not at all, read without waiting.

The folder decides who may read a run (0700, or 0750 with ``share: group``); what is inside is readable by the group
whatever the umask, but for secrets, which are written with mode 0600.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["NO_JSON", "append_line", "fsync_dir", "read_json", "read_lines", "write_atomic"]


NO_JSON = (ValueError, RecursionError)
"""What `json.loads` raises for torn, foreign and deeply nested texts."""

_MODE = 0o640


def fsync_dir(path: Path) -> None:
    """Make a rename or creation inside ``path`` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: Path, text: str, *, mode: int = _MODE, durable: bool = True) -> None:
    """Replace ``path`` by ``text``: temporary name, fsync, rename, fsync of the folder.

    ``durable=False`` skips both fsyncs: for files that only inform, rewritten every second.
    Raises OSError (disk full, quota) and leaves the old file as it was.
    """
    import tempfile  # with shutil, random and three compressors: readers need none of it

    fd, tmp = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            if durable:
                os.fsync(f.fileno())
        os.chmod(tmp, mode)
        os.replace(tmp, path)
    except BaseException:
        try:
            os.unlink(tmp)
        except OSError:
            pass
        raise
    if durable:
        fsync_dir(path.parent)


def read_json(path: Path) -> Any | None:
    """The JSON value at ``path``, or None when it is missing, unreadable or half-written."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, *NO_JSON):
        return None


def append_line(path: Path, value: dict[str, Any], *, durable: bool = False) -> None:
    """Append one JSON object as one line in a single write."""
    data = (json.dumps(value, separators=(",", ":")) + "\n").encode()
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, _MODE)
    try:
        if not os.fstat(fd).st_size:
            os.fchmod(fd, _MODE)  # the umask may have cut it
        os.write(fd, data)
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Every whole JSON object in ``path``, in order; torn or foreign lines are skipped, a missing file is empty."""
    try:
        raw = path.read_bytes()
    except OSError:
        return []
    out = []
    for line in raw.split(b"\n"):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except NO_JSON:
            continue
        if isinstance(value, dict):
            out.append(value)
    return out
