"""Finds checkpoints that a script writes by itself (``checkpoint.watch``): a new or changed file is progress."""

from __future__ import annotations

import glob
import os
from pathlib import Path


class OwnFiles:
    """Every file seen so far. None is forgotten: a folder that does not answer shows some of them again later."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}

    def look(self, root: Path, pattern: str) -> str | None:
        """Return the newest file of ``pattern`` below ``root`` that is new or has changed since the last look; None without one.

        Times of files are compared with nothing else: they come from the file system's clock, which may be set back.
        """
        found = _files(root, pattern)
        news = [path for path, mark in found.items() if self._seen.get(path) != mark]
        self._seen.update(found)
        return max(news, key=lambda path: found[path], default=None)


def _files(root: Path, pattern: str) -> dict[str, tuple[int, int]]:
    """Time of change and size of each."""
    found = {}
    for path in glob.iglob(os.path.join(glob.escape(str(root)), pattern), recursive=True):
        try:
            stat = os.stat(path)
        except OSError:
            continue
        found[path] = (stat.st_mtime_ns, stat.st_size)
    return found
