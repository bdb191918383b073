"""Budgets over all attempts, computed from the history alone: a leader that starts anew knows what its forerunners did.

Restarts are counted without new committed progress, each cause apart; attempts with little or no progress back off; the hours of
all allocations are summed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from launcher.node.policy.causes import signature_of

__all__ = ["PLAIN_SCRIPT_PROGRESS_S", "Budgets", "backoff_s"]

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
    """By exception, place and step."""
    progressed: bool = False
    """Anything is known to have been done since somebody last submitted the run."""
    refusals: Counter[int] = field(default_factory=Counter)
    """By exit code: rounds in which every rank ended itself with it before any progress."""
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

    def feed_all(self, events: Iterable[dict[str, Any]]) -> Budgets:
        """`feed` each; returns itself."""
        for value in events:
            self.feed(value)
        return self

    def feed(self, value: dict[str, Any]) -> None:
        """Count one event; unknown types and missing keys count for nothing."""
        t = value.get("t")
        # What a command tells in between has the clock of another host, and none of the attempt's time.
        if isinstance(t, (int, float)) and value.get("attempt", self._attempt) == self._attempt:
            self._last = max(self._last, float(t))
        handler = getattr(self, f"_on_{value.get('type')}", None)
        if handler is not None:
            handler(value)

    def _on_attempt_started(self, e: dict[str, Any]) -> None:
        self._close_attempt()
        self._attempt, self._began = e.get("attempt"), float(e.get("t") or 0.0)
        self._last = self._began
        self._first_step = self._waits = None
        self.idle_attempts += 1
        self.poor_attempts += 1

    def _on_attempt_ended(self, e: dict[str, Any]) -> None:
        self._close_attempt()

    def _close_attempt(self) -> None:
        if self._attempt is not None:
            self.spent_s += self._held_s(self._last)
        self._attempt = None

    def _on_waiting(self, e: dict[str, Any]) -> None:
        self._waits = float(e.get("t") or 0.0)

    def _on_round_started(self, e: dict[str, Any]) -> None:
        self.rounds += 1
        if self._waits is not None:
            self._began += float(e.get("t") or 0.0) - self._waits
            self._waits = None
        if isinstance(step := e.get("resume_step"), int):
            self.best_step = max(self.best_step, step)

    def _on_first_step(self, e: dict[str, Any]) -> None:
        self.progressed = True
        if self._first_step is None:
            self._first_step = float(e.get("t") or 0.0)

    def _on_saved(self, e: dict[str, Any]) -> None:
        step = e.get("step")
        if isinstance(step, int) and step <= self.best_step:
            return
        if isinstance(step, int):
            self.best_step = step
        self._progress(little=self._yields_little(float(e.get("t") or 0.0)))

    def _on_progress_assumed(self, e: dict[str, Any]) -> None:
        self._progress(little=False)

    def _yields_little(self, now: float) -> bool:
        if self._first_step is None:  # a script that tells no steps
            return False
        start_s = self._first_step - self._began
        return start_s >= _BACKOFF_FIRST_S and now - self._first_step < _LITTLE * start_s

    def _progress(self, *, little: bool) -> None:
        self.progressed = True
        self.restarts.clear()
        self.idle_attempts = 0
        if not little:
            self.poor_attempts = 0

    def _on_submitted(self, e: dict[str, Any]) -> None:
        """A person looked at the run and started it again, maybe from an earlier step: earlier failures are forgiven."""
        self.restarts.clear()
        self.same.clear()
        self.refusals.clear()
        self.progressed = False
        self.idle_attempts = self.poor_attempts = 0
        self.best_step = -1  # its first round says where it goes on from

    def _on_worker_failed(self, e: dict[str, Any]) -> None:
        cause = e.get("cause")
        if isinstance(cause, dict) and (key := signature_of(cause, e.get("step"))) is not None:
            self.same[key] += 1
        if e.get("refused") and isinstance(cause, dict) and isinstance(code := cause.get("exit_code"), int):
            self.refusals[code] += 1

    def _on_decision(self, e: dict[str, Any]) -> None:
        if e.get("action") in ("new_round", "requeue") and isinstance(e.get("evidence"), str):
            self.restarts[e["evidence"]] += 1

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
