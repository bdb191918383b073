"""Finds checkpoints that a script writes by itself (``checkpoint.watch``): a new or changed file is progress."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

from launcher.run.paths import OWN_NAMES

_SHARED = ("code", "checkpoints", "logs")
"""Folders in which a script may write, too: it runs in the first."""
_OWN_FOLDER = re.compile(r"checkpoints/(step-\d+|tmp\.\d+\.\d+\.\d+|(trash|aside)\..+)|logs/attempt-\d+")


def newest_of(root: Path, pattern: str, seen: dict[str, tuple[int, int]]) -> str | None:
    """Return the newest file of ``pattern`` below ``root`` that is new or has changed since it was ``seen``; None without one.

    The launcher's own files are left out. Times of files are compared with nothing else: they come from the file system's clock,
    which may be set back.
    """
    found = {}
    for path in glob.iglob(os.path.join(glob.escape(str(root)), pattern), recursive=True):
        if _is_own(Path(path).relative_to(root).parts):
            continue
        try:
            stat = os.stat(path)
        except OSError:
            continue
        found[path] = (stat.st_mtime_ns, stat.st_size)
    news = [path for path, mark in found.items() if seen.get(path) != mark]
    seen.update(found)
    return max(news, key=found.__getitem__, default=None)


def _is_own(parts: tuple[str, ...]) -> bool:
    """Whether the launcher writes this file of a run's folder, or it is one of the folder's own parts."""
    if len(parts) > 1 and parts[0] in _SHARED:
        return _OWN_FOLDER.fullmatch("/".join(parts[:2])) is not None
    return not parts or parts[0] in OWN_NAMES
