"""Tell a run's folder that was deleted or moved from a file system that is away.

ENOENT of the run's folder alone says nothing: below a mount that is away everything is missing. So whoever begins to use a
folder holds it (`Anchor`). It is gone when the very folder that lay around it is still there and does not hold it any more.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from launcher.frozen import frozen


@frozen
class Gone:
    """Where a run's folder was, and where it is now."""

    root: Path
    """Where it was."""
    place: Path | None = None
    """Where it is now; None: it was deleted, or it is on another file system."""

    @property
    def text(self) -> str:
        """As a clause."""
        if self.place is not None:
            return f"the run's folder {self.root} was moved to {self.place}"
        return f"the run's folder {self.root} is gone: it was deleted, or moved to another file system"


class Anchor:
    """Holds a run's folder open, wherever somebody moves it. Raises OSError when it cannot be opened now."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        weakref.finalize(self, os.close, self._fd)
        found = os.fstat(self._fd)
        self._own, self._around = _identity(found), _identity(os.stat(root.parent))
        self._counted = found.st_nlink > 0  # not every file system counts links of folders

    def look(self) -> Gone | None:
        """Find out whether the folder was deleted or moved; None while it is in its place, or not known. Never raises."""
        try:
            if self._is_in_place():
                # Deleted while the leader writes into it: the folder stays, with what is written anew.
                return None if {"spec.json", "attempts"} & set(os.listdir(self.root)) else Gone(self.root)
            # The kernel knows what was moved on this host.
            held = Path(os.readlink(f"/proc/self/fd/{self._fd}"))
            if self._is_at(held):
                return Gone(self.root, held)
            if self._counted and os.fstat(self._fd).st_nlink == 0:
                return Gone(self.root)
            # A mount point below which nothing is mounted is another folder than the one that was there.
            if _identity(os.stat(self.root.parent)) != self._around:
                return None
            return Gone(self.root, self._sibling())
        except OSError:
            return None

    def _is_in_place(self) -> bool:
        try:
            return _identity(os.stat(self.root)) == self._own
        except FileNotFoundError:
            return False

    def _is_at(self, place: Path) -> bool:
        try:
            return _identity(os.stat(place)) == self._own
        except OSError:
            return False

    def _sibling(self) -> Path | None:
        """Return the folder under its new name in the folder around it; this also finds what another host has renamed."""
        with os.scandir(self.root.parent) as entries:
            alike = [Path(entry.path) for entry in entries if entry.inode() == self._own[1]]
        return next(filter(self._is_at, alike), None)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def unanswered(root: Path, error: OSError) -> str:
    """Return the sentence for a folder that does not answer and was not held open before."""
    try:
        missing = root.name not in os.listdir(root.parent)
    except OSError:
        missing = False
    if missing:
        return f"The run directory {root} is not there: it was deleted or moved, or its file system is away."
    return f"The run directory {root} does not answer: {error}."
