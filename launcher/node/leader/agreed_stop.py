"""The leader's half of stopping at an agreed step (DESIGN.md gives the invariant and why nothing can deadlock).

Pure: it is told what workers report, and answers when they agree.

1. ``pause`` to everybody. Each worker holds at its next boundary and answers with the highest unit it has entered; one
   that has finished all its work counts with its last step.
2. When all have answered, S is the highest of the answers. Nobody is beyond S, because whoever has answered begins
   nothing beyond what it reported until it knows S.
3. ``stop S`` to everybody: run through S, save, report.
"""

from __future__ import annotations

from launcher.run.messages import Pause, StopAt


class AgreedStop:
    """One attempt to stop ``ranks`` at a common step."""

    def __init__(self, ranks: list[int], *, save: bool) -> None:
        self.ranks = set(ranks)
        self.save = save
        self.step: int | None = None
        """S, once agreed."""
        self.withdrawn = False
        self._entered: dict[int, int] = {}
        self._finished: dict[int, int] = {}
        self._ended: set[int] = set()
        self._left: set[int] = set()

    def entered(self, rank: int, step: int) -> bool:
        """A worker's answer; true when it makes the agreement complete (tell everybody to stop)."""
        if rank in self.ranks:
            self._entered[rank] = max(step, self._entered.get(rank, step))
        return self._agree()

    def finished(self, rank: int, step: int) -> bool:
        """A worker has done all its work; true when that makes the agreement complete."""
        if rank in self.ranks:
            self._finished[rank] = step
            self._ended.add(rank)
        return self._agree()

    def stopped(self, rank: int) -> None:
        """A worker has stopped at S."""
        if rank in self.ranks:
            self._ended.add(rank)

    def joined(self, rank: int) -> Pause | StopAt:
        """Count a worker that was not asked in the beginning; returns what to tell it."""
        self.ranks.add(rank)
        return Pause() if self.step is None else StopAt(step=self.step, save=False, tmp=None)

    def left(self, rank: int) -> bool:
        """Count out a worker that ended and did not stop as agreed; true when the others agree without it.

        What it reported still counts: the others may have gone into that unit with it.
        """
        self.ranks.discard(rank)
        self._left.add(rank)
        return self._agree()

    def _agree(self) -> bool:
        if self.step is not None or self.withdrawn or not self.ranks:
            return False
        if not self.ranks <= (self._entered.keys() | self._finished.keys()):
            return False
        self.step = max([*self._entered.values(), *self._finished.values()], default=0)
        return True

    @property
    def silent(self) -> list[int]:
        """Ranks that have not answered yet."""
        return sorted(self.ranks - self._entered.keys() - self._finished.keys())

    @property
    def pending(self) -> list[int]:
        """Ranks that have not stopped yet."""
        return sorted(self.ranks - self._ended)

    @property
    def complete(self) -> bool:
        """Everybody is at S."""
        return self.step is not None and not self.pending

    @property
    def all_done(self) -> bool:
        """S is the last step of all: every rank finished by itself, so nothing is left to do."""
        return self.complete and not self._left and self._finished.keys() == self.ranks

    def withdraw(self) -> bool:
        """Take the pause back; false when S has been told, after which that is impossible."""
        self.withdrawn = self.step is None
        return self.withdrawn
