"""When is a run hung? Nobody progresses for longer than what was learned from this run itself.

Limits by phase, in seconds: training steps are learned (several times the usual and the slowest recent step, never below
the floor); the first step, evaluation, saving and loading have far larger limits, since nothing is known of them yet and a
false alarm costs more than a late one. A worker that is stopped (process state T) is found at once, whatever the limit.

What a loop of the user's own does between two steps (an evaluation that nobody announced) cannot be told from a hang: such a
false alarm costs one restart, and every restart for a hang without new committed progress makes the next watch more patient.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from launcher.frozen import frozen

LONG_S = 1800.0
"""Limit of everything that is no training step."""

FROZEN_S = 4.0
"""A worker in state T for so long, while nobody progresses, is frozen: debuggers are attached to for longer or not at all."""

_TIMES_MEDIAN, _TIMES_SLOWEST = 30.0, 3.0
"""Steps that take up to 20 times the usual are met (long sequences, a cold cache), so the limit lies well above that. The
slowest recent step may have contained an evaluation or a slow disk: it counts less than the usual one."""
_TIMES_LONGEST = 10.0

PATIENCE = 4.0
"""Each restart for a hang since the last committed progress multiplies the limit by this: of training steps at most to `LONG_S`, of
everything else at most to `LONGEST_S`."""

LONGEST_S = 4 * 3600.0
"""An evaluation, or a first step, of half an hour is rare; of four hours its author says so (``restart.hang_floor_s``)."""


@frozen
class RankView:
    """What is known of one rank."""

    rank: int
    phase: str
    step: int
    frozen_s: float = 0.0
    """Seconds in process state T without a break."""
    at: int | None = None
    """The unit it has entered, as it answered when nobody progressed; None: it did not answer."""
    collectives: int | None = None
    """How many collectives it had started then; None: not known."""


@dataclass
class HangWatch:
    """Learns step times and says when the limit is over. All times are the leader's own clock."""

    floor_s: float
    start_s: float
    """Limit while the process group forms."""
    alarms: int = 0
    """Hangs that were called since the last committed progress."""
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=200))
    """Usual step times, as reported."""
    slow: deque[float] = field(default_factory=lambda: deque(maxlen=200))
    """The longest steps among them."""
    longest: dict[str, float] = field(default_factory=dict)
    """Longest observed stay in each other phase."""
    last_progress: float = 0.0

    @property
    def usual_s(self) -> float | None:
        """The usual time of a step, as far as there were any."""
        return statistics.median(self.recent) if self.recent else None

    def progressed(self, now: float, usual_s: float | None = None, longest_s: float | None = None) -> None:
        """Somebody finished steps, or entered another phase; of several steps the median and the longest are told."""
        self.last_progress = max(self.last_progress, now)
        if usual_s is not None and math.isfinite(usual_s) and usual_s > 0:
            self.recent.append(usual_s)
            self.slow.append(usual_s if longest_s is None else longest_s)

    def left_phase(self, phase: str, seconds: float) -> None:
        """A rank was in ``phase`` for so long."""
        self.longest[phase] = max(self.longest.get(phase, 0.0), seconds)

    def forgive(self, seconds: float) -> None:
        """The leader itself stood still (suspended machine, SIGSTOP): nobody else is to blame for that time."""
        self.last_progress += seconds

    def limit_s(self, phases: Iterable[str]) -> float:
        """How long nothing may happen while ranks are in these phases: the most patient one counts.

        A script's own business has no limit, but ranks that wait in a step for one that has left its loop have theirs.
        """
        known = set(phases)
        return max((self._limit_of(phase) for phase in known - {"script"} or known), default=LONG_S)

    def _limit_of(self, phase: str) -> float:
        if phase == "script":
            return math.inf
        if phase in ("starting", "init"):
            return max(self.start_s, self.floor_s)
        if phase == "train" and self.recent:
            usual, slowest = statistics.median(self.recent), max(self.slow)
            return self._patient(max(self.floor_s, _TIMES_MEDIAN * usual, _TIMES_SLOWEST * slowest), LONG_S)
        return self._patient(max(LONG_S, self.floor_s, _TIMES_LONGEST * self.longest.get(phase, 0.0)), LONGEST_S)

    def _patient(self, limit: float, most: float) -> float:
        return max(limit, min(most, limit * PATIENCE**self.alarms))

    def hung(self, now: float, phases: Collection[str], frozen_s: float = 0.0) -> float | None:
        """The limit that is over, in seconds, or None. A frozen worker ends the patience early.

        ``phases`` are those of the ranks that have something to do, ``frozen_s`` how long one of these has been in process state T.
        """
        if not phases:
            return None
        quiet = now - self.last_progress
        if quiet >= FROZEN_S and frozen_s >= FROZEN_S:
            return FROZEN_S
        limit = self.limit_s(phases)
        return limit if quiet > limit else None


def laggards(ranks: list[RankView], frozen_s: float = FROZEN_S) -> list[RankView]:
    """Who holds the others up: ranks that have been frozen for ``frozen_s``; else those that do not even answer; else those furthest behind.

    Those behind have entered an earlier unit, or in the same one have not started a collective that most ranks have. Nobody where
    all are alike. Reported steps are no measure: a rank that waits told of its last step up to 0.1 s before, which is many
    short steps.
    """
    stopped = [r for r in ranks if r.frozen_s >= frozen_s]
    if stopped:
        return stopped
    least = min((r.at for r in ranks if r.at is not None), default=None)
    silent = [r for r in ranks if r.at is None]
    behind = silent or [r for r in ranks if r.at == least]
    return behind if len(behind) < len(ranks) else _absent(ranks)


def _absent(ranks: list[RankView]) -> list[RankView]:
    counts = [r.collectives for r in ranks if r.collectives is not None]
    if not counts or len(counts) < len(ranks):
        return []
    behind = [r for r in ranks if r.collectives == min(counts)]
    return behind if 2 * len(behind) <= len(ranks) and min(counts) < max(counts) else []
