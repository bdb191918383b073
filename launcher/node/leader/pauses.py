"""Which ranks kept the others waiting: asked in longer pauses of training, in which nobody progresses. Pure.

What a rank does between two steps (evaluates, writes, uploads) makes every rank's step long; only the moment itself tells which one it is.
"""

from __future__ import annotations

from collections import defaultdict, deque

from launcher.node.policy.hangs import HangWatch

_LEAST_S = 1.0
_TIMES_USUAL = 5.0
"""A pause is this much longer than a usual step."""
_EVERY_S = 2.0
"""Between two questions."""
_WINDOW_S = 300.0


class Pauses:
    """Counts, by rank, the pauses in which it was at work while most others waited for it."""

    def __init__(self) -> None:
        self._asked: set[int] = set()
        """Ranks that were asked in this pause."""
        self._answers: dict[int, bool] = {}
        self._pause_of = -1.0
        """The time of the last progress before it."""
        self._asked_at = 0.0
        self.quiet_at = 0.0
        """When a heartbeat has last told that no rank of its node had progressed since the one before."""
        self._kept: defaultdict[int, deque[float]] = defaultdict(deque)

    def may_begin(self, now: float, hangs: HangWatch) -> bool:
        """Return whether nobody has progressed for so long that ranks are to be asked, once in each pause."""
        quiet_s = self.quiet_at - hangs.last_progress  # later steps may be known with the next heartbeat only
        if quiet_s < _LEAST_S or hangs.last_progress == self._pause_of or now - self._asked_at < _EVERY_S:
            return False
        usual_s = hangs.usual_s
        return usual_s is not None and quiet_s >= _TIMES_USUAL * usual_s

    def begin(self, now: float, hangs: HangWatch, ranks: set[int]) -> None:
        """These ranks are being asked."""
        self._pause_of, self._asked_at, self._asked, self._answers = hangs.last_progress, now, ranks, {}

    def answered(self, rank: int, waits: bool | None) -> None:
        """Take in an answer; with the last one it is known who kept whom."""
        if rank not in self._asked or waits is None:
            return
        self._answers[rank] = waits
        if len(self._answers) < len(self._asked):
            return
        busy = [rank for rank, waiting in self._answers.items() if not waiting]
        if 0 < len(busy) <= len(self._answers) / 2:
            for each in busy:
                self._kept[each].append(self._asked_at)
        self._asked = set()

    def count(self, rank: int, now: float) -> int:
        """Return in how many pauses of the last five minutes this rank kept the others."""
        times = self._kept.get(rank)
        while times and now - times[0] > _WINDOW_S:
            times.popleft()
        return len(times or ())
