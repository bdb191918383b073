"""Budgets over all attempts, computed from the history alone: a new leader knows what earlier attempts have used.

Restarts are counted without new committed progress, each cause apart; attempts with little or no progress back off; the hours of
all allocations are summed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from launcher.node.policy.first_failure import signature
from launcher.run import events as ev
from launcher.run.event_parts import Cause

BAD_NODE_FAILURES = 2
"""Failures in a row, without a new checkpoint, after which a host makes room for a spare."""
PLAIN_SCRIPT_PROGRESS_S = 600.0
"""A script that reports nothing is believed to progress when a round lived so long."""

_BACKOFF_FIRST_S, _BACKOFF_MOST_S = 30.0, 1800.0
_LITTLE = 0.25
"""An attempt yields little when its committed steps took less than this share of the time it took to come up."""


@dataclass
class Budgets:
    """A fold over events: feed every event of the run in order, old attempts' first."""

    restarts: Counter[str] = field(default_factory=Counter)
    """By kind of evidence, since the last new committed progress."""
    same: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    """By exception, place and step. Where no step is told, new files of the script begin the count anew, and time does not."""
    progressed: bool = False
    """Anything is known to have been done since somebody last submitted the run."""
    refusals: Counter[int] = field(default_factory=Counter)
    """By exit code: rounds in which every rank ended itself with it before any progress."""
    advances: int = 0
    """How often new progress was committed."""
    best_step: int = -1
    idle_attempts: int = 0
    """Attempts in a row that committed nothing new, the current one included as long as it has not."""
    poor_attempts: int = 0
    """Attempts in a row that yielded little or nothing, the current one included as long as it has not yielded more."""
    rounds: int = 0
    """Rounds that were ever started."""
    spent_s: float = 0.0
    """Allocation time of ended attempts."""
    _attempt: int | None = None
    _began: float = 0.0
    _last: float = 0.0
    _first_step: float | None = None
    _waits: float | None = None
    """Since when the attempt has waited for other runs, holding no allocation of SLURM's."""

    def feed_all(self, events: Iterable[ev.Event]) -> Budgets:
        """`feed` each; returns itself."""
        for value in events:
            self.feed(value)
        return self

    def feed(self, event: ev.Event) -> None:
        """Count one event; those of unknown types count for nothing."""
        # What a command tells in between has the clock of another host, and none of the attempt's time.
        if event.attempt == self._attempt:
            self._last = max(self._last, event.t)
        match event:
            case ev.RunSubmitted():
                self._on_submitted()
            case ev.AttemptStarted():
                self._on_attempt_started(event)
            case ev.AttemptEnded():
                self._close_attempt()
            case ev.Waiting():
                self._waits = event.t
            case ev.RoundStarted():
                self._on_round_started(event)
            case ev.FirstStep():
                self.progressed = True
                self._first_step = event.t if self._first_step is None else self._first_step
            case ev.Saved():
                self._on_saved(event)
            case ev.ProgressAssumed() | ev.RerunStarted() | ev.RerunEnded():  # what a hold is there for
                self._progress(little=False)
            case ev.WorkerFailed(cause=Cause() as cause):
                self._on_worker_failed(event, cause)
            case ev.Decided(action="new_round" | "requeue", evidence=str(evidence)):
                self.restarts[evidence] += 1

    def _on_attempt_started(self, e: ev.AttemptStarted) -> None:
        self._close_attempt()
        self._attempt, self._began = e.attempt, e.t
        self._last = self._began
        self._first_step = self._waits = None
        self.idle_attempts += 1
        self.poor_attempts += 1

    def _close_attempt(self) -> None:
        if self._attempt is not None:
            self.spent_s += self._held_s(self._last)
        self._attempt = None

    def _on_round_started(self, e: ev.RoundStarted) -> None:
        self.rounds += 1
        if self._waits is not None:
            self._began += e.t - self._waits
            self._waits = None
        if e.resume_step is not None:
            self.best_step = max(self.best_step, e.resume_step)

    def _on_saved(self, e: ev.Saved) -> None:
        if e.step is not None and e.step <= self.best_step:
            return
        if e.step is not None:
            self.best_step = e.step
        if e.step is None:  # a script's own files: what fails in the same way now fails at another place
            self.same = Counter({key: count for key, count in self.same.items() if key[1] is not None})
        self._progress(little=self._yields_little(e.t))

    def _yields_little(self, now: float) -> bool:
        if self._first_step is None:  # a script that tells no steps
            return False
        start_s = self._first_step - self._began
        return start_s >= _BACKOFF_FIRST_S and now - self._first_step < _LITTLE * start_s

    def _progress(self, *, little: bool) -> None:
        self.progressed = True
        self.advances += 1
        self.restarts.clear()
        self.idle_attempts = 0
        if not little:
            self.poor_attempts = 0

    def _on_submitted(self) -> None:
        """A user submitted the run again, maybe from an earlier step: earlier failures count no more."""
        self.restarts.clear()
        self.same.clear()
        self.refusals.clear()
        self.progressed = False
        self.idle_attempts = self.poor_attempts = 0
        self.best_step = -1  # its first round says where it goes on from

    def _on_worker_failed(self, e: ev.WorkerFailed, cause: Cause) -> None:
        key = signature(cause, e.step)
        # A connection that breaks now and then, at the same line, ends no script that tells no steps.
        if key is not None and not (e.waited and e.step is None):
            self.same[key] += 1
        if e.refused and cause.exit_code is not None:
            self.refusals[cause.exit_code] += 1

    def spent_with_current_s(self, now: float) -> float:
        """Allocation time of all attempts, the running one included."""
        return self.spent_s + (self._held_s(now) if self._attempt is not None else 0.0)

    def _held_s(self, now: float) -> float:
        return max(0.0, (now if self._waits is None else self._waits) - self._began)


def backoff_s(poor_attempts: int) -> float:
    """How long the next attempt should wait after so many attempts in a row that yielded little or nothing."""
    if poor_attempts < 2:
        return 0.0
    return min(_BACKOFF_MOST_S, _BACKOFF_FIRST_S * 2.0 ** min(poor_attempts - 2, 16))
