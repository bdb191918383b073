"""Checkpoints that a script writes by itself (``checkpoint.watch``): a newer file is progress."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.runtime.board import Board

__all__ = ["OwnFiles"]


class OwnFiles:
    """The newest file seen so far."""

    def __init__(self) -> None:
        self._seen: tuple[str, float] | None = None

    async def look(self, board: Board) -> bool:
        """Whether there is a newer file than before; it is told as saved."""
        pattern = board.spec.checkpoint.watch
        if not pattern:
            return False
        found = await board.blocking(lambda: _newest(board.paths.root, pattern))
        # An older one that is the newest now is what a folder that does not answer has left to see.
        if found is None or (self._seen is not None and found[1] <= self._seen[1]):
            return False
        is_new = self._seen is not None or board.attempt == 0 or found[1] > board.began_t
        self._seen = found
        if is_new:
            board.history.event("saved", step=None, path=found[0], reason="watch")
        return is_new


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
