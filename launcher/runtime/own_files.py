"""Checkpoints that a script writes by itself (``checkpoint.watch``): a newer file is progress."""

from __future__ import annotations

import glob
import os
from pathlib import Path

__all__ = ["OwnFiles"]


class OwnFiles:
    """The newest file seen so far."""

    def __init__(self) -> None:
        self._seen: tuple[str, float] | None = None

    def look(self, root: Path, pattern: str, since_t: float) -> str | None:
        """The file of ``pattern`` below ``root`` that is newer than any before; the first one counts if it is newer than ``since_t``."""
        found = _newest(root, pattern)
        # An older one that is the newest now is what a folder that does not answer has left to see.
        if found is None or (self._seen is not None and found[1] <= self._seen[1]):
            return None
        is_new = self._seen is not None or found[1] > since_t
        self._seen = found
        return found[0] if is_new else None


def _newest(root: Path, pattern: str) -> tuple[str, float] | None:
    newest: tuple[str, float] | None = None
    for path in glob.iglob(os.path.join(glob.escape(str(root)), pattern), recursive=True):
        try:
            stamp = os.stat(path).st_mtime
        except OSError:
            continue
        if newest is None or stamp > newest[1]:
            newest = (path, stamp)
    return newest
