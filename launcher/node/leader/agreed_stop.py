"""The leader's half of stopping at an agreed step. No rank passes that step, and no rank waits for one that never comes.

Pure: it is told what workers report, and answers when they agree.

1. ``pause`` to everybody. Each worker holds at its next boundary and answers with the highest unit it has entered; one
   that has finished all its work counts with its last step.
2. When all have answered, S is the highest of the answers. Nobody is beyond S, because whoever has answered begins
   nothing beyond what it reported until it knows S.
3. ``stop S`` to everybody: run through S, save, report.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from launcher.run.messages import Pause, StopAt


@dataclass
class AgreedStop:
    """One attempt to stop ``ranks`` at a common step."""

    ranks: set[int]
    save: bool
    step: int | None = None
    """S, once agreed."""
    _reported: dict[int, int] = field(default_factory=dict)
    """The highest unit that each has entered, or after which it has finished."""
    _finished: set[int] = field(default_factory=set)
    _silent: set[int] = field(init=False)
    """Ranks that have not answered yet."""
    pending: set[int] = field(init=False)
    """Ranks that have not stopped yet."""

    def __post_init__(self) -> None:
        self._silent, self.pending = set(self.ranks), set(self.ranks)

    def entered(self, rank: int, step: int) -> bool:
        """Take in a worker's answer; true when it makes the agreement complete (tell everybody to stop)."""
        if rank in self.ranks:
            self._reported[rank] = max(step, self._reported.get(rank, step))
            self._silent.discard(rank)
        return self._agree()

    def finished(self, rank: int, step: int) -> bool:
        """Note that a worker has done all its work; true when that makes the agreement complete."""
        self._finished.add(rank)
        self.pending.discard(rank)
        return self.entered(rank, step)

    def stopped(self, rank: int) -> None:
        """Note that a worker has stopped at S."""
        self.pending.discard(rank)

    def joined(self, rank: int) -> Pause | StopAt:
        """Count in a worker that was not asked in the beginning; returns what to tell it."""
        self.ranks.add(rank)
        if rank not in self._reported:
            self._silent.add(rank)
            self.pending.add(rank)
        return Pause() if self.step is None else StopAt(step=self.step, save=False)

    def left(self, rank: int) -> bool:
        """Count out a worker that ended and did not stop as agreed; true when the others agree without it.

        What it reported still counts: the others may have gone into that unit with it.
        """
        for those in (self.ranks, self._silent, self.pending):
            those.discard(rank)
        return self._agree()

    def _agree(self) -> bool:
        if self.step is not None or not self.ranks or self._silent:
            return False
        self.step = max(self._reported.values())
        return True

    @property
    def complete(self) -> bool:
        """Everybody is at S."""
        return self.step is not None and not self.pending

    def all_done(self, world_size: int) -> bool:
        """Return whether S is the last step of all: every rank of the round finished by itself, so nothing is left to do."""
        return self.complete and len(self.ranks & self._finished) == world_size
