"""Verifies a large checkpoint while the round that resumed from it already runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from launcher.node.checkpoints.committed import CommittedCheckpoint
from launcher.node.leader.folder_retries import Blocking, until_answered
from launcher.run.manifest import why_damaged


class Proof:
    """Compares ``checkpoint`` with its manifest. The round's saves wait for that, so that none builds on a damaged one."""

    def __init__(self, checkpoint: CommittedCheckpoint, blocking: Blocking, wake: Callable[[], None]) -> None:
        self.checkpoint = checkpoint
        self.damage: str | None = None
        """What is wrong with the checkpoint, once that is known."""
        self._halted = threading.Event()
        self._read_all = False
        self._blocking, self._wake = blocking, wake
        self._task = asyncio.get_running_loop().create_task(self._read())

    @property
    def pending(self) -> bool:
        """Whether it is still being read."""
        return not self._task.done()

    async def good(self) -> bool:
        """Wait until it is read; return whether nothing is wrong. False, too, where reading was stopped: nothing is known then."""
        await asyncio.shield(self._task)
        return self.damage is None and self._read_all

    def stop(self) -> None:
        """Stop reading."""
        self._halted.set()

    async def halt(self) -> None:
        """Stop reading, and wait for that: the round is over."""
        self.stop()
        await asyncio.shield(self._task)

    async def _read(self) -> None:
        folder = self.checkpoint.path
        try:
            work = lambda: why_damaged(folder, halted=self._halted.is_set)  # noqa: E731
            self.damage = await until_answered(self._blocking, work, folder.parents[1], enough=self._halted.is_set)
            self._read_all = True
        except OSError as error:  # it may be whole; the next round looks again
            if not self._halted.is_set():
                self.damage = f"it cannot be read: {error}"
        self._wake()
