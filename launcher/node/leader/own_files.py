"""Finds checkpoints that a script writes by itself (``checkpoint.watch``): a new or changed file is progress."""

from __future__ import annotations

import glob
import os
from pathlib import Path


def newest_of(root: Path, pattern: str, seen: dict[str, tuple[int, int]]) -> str | None:
    """Return the newest file of ``pattern`` below ``root`` that is new or has changed since it was ``seen``; None without one.

    Times of files are compared with nothing else: they come from the file system's clock, which may be set back.
    """
    found = {}
    for path in glob.iglob(os.path.join(glob.escape(str(root)), pattern), recursive=True):
        try:
            stat = os.stat(path)
        except OSError:
            continue
        found[path] = (stat.st_mtime_ns, stat.st_size)
    news = [path for path, mark in found.items() if seen.get(path) != mark]
    seen.update(found)
    return max(news, key=found.__getitem__, default=None)
