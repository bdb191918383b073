"""A run's time, cut into pieces that each have one name; pure.

queued     waiting for an allocation
start-up   from the allocation to the first optimizer step of an attempt
useful     training whose steps still count
saving     training held up by a checkpoint
lost       training whose steps had to be done again, or count for nothing in the end
recovery   from a failure to the first optimizer step of the next round in the same allocation
stopped    the allocation is held but nothing trains any more
away       between an end and the next submission: nobody wanted it to run; not counted

Steps are lost when a later round resumes before them; where inside a round that was in time is read off the (time, step)
points that its events give, straight lines between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from launcher.frozen import frozen
from launcher.report.model.history import History, as_dict, as_number
from launcher.run import events as ev
from launcher.run.events import Event

KINDS = ("useful", "saving", "lost", "recovery", "start-up", "queued", "stopped", "away")


@frozen
class Segment:
    """One piece of a run's time; ``start`` and ``end`` in seconds since the epoch."""

    kind: str
    start: float
    end: float
    attempt: int | None = None
    round: int | None = None

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


@dataclass
class _Training:
    """The training part of one round."""

    start: float
    end: float
    attempt: int | None
    round: int | None
    points: list[tuple[float, float]] = field(default_factory=list)
    """(time, step), in order."""
    saves: list[tuple[float, float]] = field(default_factory=list)
    """Intervals in which a checkpoint held training up."""
    keeps: float = float("inf")
    """Steps beyond this one were lost."""
    failed: bool = False
    """It ended by a failure: steps may have been done beyond the last known point."""

    def time_of(self, step: float) -> float:
        """When ``step`` was done, by straight lines between the known points."""
        points = [p for p in self.points if self.start <= p[0] <= self.end] or [(self.start, 0.0)]
        if step <= points[0][1]:
            return self.start if step < points[0][1] else points[0][0]
        for (t0, s0), (t1, s1) in pairwise(points):
            if s0 <= step <= s1:
                return t1 if s1 == s0 else t0 + (t1 - t0) * (step - s0) / (s1 - s0)
        return points[-1][0] if step <= points[-1][1] else self.end

    @property
    def last_step(self) -> float:
        """The highest step known to be done; more may have been."""
        return max((s for _, s in self.points), default=0.0)


class _Reader:
    """Walks the events once; what is open is closed by what follows."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.segments: list[Segment] = []
        self.trainings: list[_Training] = []
        self.kind = "queued"
        self.since: float | None = None
        self.attempt: int | None = None
        self.round: int | None = None
        self.current: _Training | None = None
        self.begun: dict[float, float] = {}
        self.last_t = 0.0
        self.kept: list[tuple[int, float]] = []
        """(trainings so far, the step beyond which theirs are lost), as it was found out."""
        self.last_start = max((e.t for e in history.of(ev.AttemptStarted)), default=0.0)
        self.allocated: dict[int | None, float] = {}
        """When each attempt's allocation began, where its end tells."""
        for e in history.of(ev.AttemptEnded):
            if e.allocation_s is not None:
                self.allocated.setdefault(e.attempt, e.t - e.allocation_s)
        self.silent_script = as_dict(history.spec.get("work")).get("kind") in ("script", "module") and not any(
            history.of(ev.FirstStep)
        )

    def close(self, t: float, kind: str) -> None:
        """The open piece ends at ``t``; what follows is of ``kind``."""
        if self.current is not None:
            self.current.end = max(t, self.current.start)
            self.current = None
        elif self.since is not None and t > self.since:
            held = self.kind not in ("queued", "away")
            self.segments.append(Segment(self.kind, self.since, t, self.attempt if held else None, self.round))
        self.since = t if self.since is None else max(self.since, t)
        self.kind = kind

    def read(self, event: Event) -> None:
        """Take in one event."""
        if isinstance(event, ev.Fault):
            self.on_fault(event)
        elif (handler := _HANDLERS.get(type(event))) is not None:
            handler(self, event)
        if not isinstance(event, ev.RunSubmitted):
            self.last_t = max(self.last_t, event.t)

    def on_submitted(self, e: ev.RunSubmitted) -> None:
        if self.since is None:
            self.since = e.t
        elif self.kind == "away":
            self.close(e.t, "queued")

    def on_attempt_started(self, e: ev.AttemptStarted) -> None:
        t = e.t
        if self.since is None:
            self.since = e.submitted_t or t
        if self.kind not in ("queued", "away"):  # the attempt before ended and left no message
            again = e.submitted_t
            died = again if again is not None and self.last_t <= again <= t else self.last_t
            self._failed()
            self.close(died, "queued")
        self.close(max(self._allocated(e), self.since or t), "start-up")
        self.attempt, self.round = e.attempt, None
        self.begun = {}

    def _allocated(self, e: ev.AttemptStarted) -> float:
        """When the attempt's allocation began: some seconds before its leader's first word."""
        t = e.t
        if (began := self.allocated.get(e.attempt)) is not None:
            return min(t, began)
        if self.history.state.get("attempt") == e.attempt:
            return min(t, as_number(self.history.state.get("allocation_t")) or t)
        return t

    def on_waiting(self, e: ev.Waiting) -> None:
        self.close(e.t, "queued")  # without SLURM a chained run's leader waits for the others, and holds nothing

    def on_round_started(self, e: ev.RoundStarted) -> None:
        if self.kind == "queued":
            self.close(e.t, "start-up")
        self.round = e.round
        if e.resume_step is not None:
            self._keep(e.resume_step)
        if self.kind == "training":
            self._failed()
            self.close(e.t, "recovery")
        if self.silent_script:
            self._train(e.t, 0.0)

    def on_first_step(self, e: ev.FirstStep) -> None:
        step = e.step or 0
        self._keep(step - 1)  # scripts may resume by ways of their own: the first step is what tells
        self._train(e.t, step)

    def _keep(self, step: float) -> None:
        """Steps beyond ``step`` done so far are lost."""
        if not self.silent_script:
            self.kept.append((len(self.trainings), step))

    def settle(self) -> None:
        """Tell every training which of its steps still count, the newest first: there may be thousands."""
        left, least = list(self.kept), float("inf")
        for number in range(len(self.trainings), 0, -1):
            while left and left[-1][0] >= number:
                least = min(least, left.pop()[1])
            self.trainings[number - 1].keeps = least

    def _failed(self) -> None:
        if self.current is not None:
            self.current.failed = True

    def _train(self, t: float, step: float) -> None:
        self.close(t, "training")
        self.current = _Training(t, float("inf"), self.attempt, self.round, [(t, step)])
        self.trainings.append(self.current)

    def on_save_started(self, e: ev.SaveStarted) -> None:
        if e.step is not None:
            self.begun[e.step] = e.t
            self._point(e.t, e.step)

    def on_saved(self, e: ev.Saved) -> None:
        step = e.step
        if step is None or not self.trainings:
            return
        training = self.trainings[-1]
        begun = self.begun.get(step, e.t - (e.seconds or 0.0))
        if step not in self.begun and self.current is training:
            self._point(begun, step)
        whole = e.reason in ("stop", "end")  # nothing trains beside a last save
        blocked = e.t - begun if whole else e.blocked_s or 0.0
        if blocked > 0:
            training.saves.append((begun, begun + blocked))

    def on_evaluated(self, e: ev.Evaluated) -> None:
        if e.step is not None:
            self._point(e.t, e.step)

    def on_stopped(self, e: ev.Stopped) -> None:
        if e.step is not None and (self.current is None or e.step not in self.begun):
            self._point(e.t, e.step)
        self.close(e.t, "stopped")

    def on_fault(self, e: ev.Fault) -> None:
        if self.kind != "training" or self.current is None:
            return
        t = e.t
        if isinstance(e, ev.Hang):  # nobody had progressed for that long
            t = max(self.current.points[-1][0], t - (e.limit_s or 0.0))
        step = e.step if isinstance(e, ev.WorkerFailed) else None
        if step is not None and step >= self.current.last_step:
            self._point(t, step)
        self._failed()
        self.close(t, "recovery")

    def on_round_ended(self, e: ev.RoundEnded) -> None:
        if self.kind == "training":
            self.close(e.t, "recovery")

    def on_attempt_ended(self, e: ev.AttemptEnded) -> None:
        if self.kind == "away":
            if self.since is not None and e.t > self.since:
                self.segments.append(Segment("stopped", self.since, e.t, self.attempt, self.round))
                self.since = e.t
            return
        comes_back = self.history.outcome is None or self.last_start >= e.t
        self.close(e.t, "queued" if comes_back else "stopped")

    def on_ended(self, e: ev.Ended) -> None:
        self.close(e.t, "away")
        if e.state != "completed":
            self._keep(max((s.step for s in self.history.of(ev.Saved) if s.step is not None), default=0))

    def _point(self, t: float, step: float) -> None:
        if self.current is not None and t >= self.current.points[-1][0]:
            self.current.points.append((t, step))


_HANDLERS: dict[type[Event], Callable[[_Reader, Any], None]] = {
    ev.RunSubmitted: _Reader.on_submitted,
    ev.AttemptStarted: _Reader.on_attempt_started,
    ev.Waiting: _Reader.on_waiting,
    ev.RoundStarted: _Reader.on_round_started,
    ev.FirstStep: _Reader.on_first_step,
    ev.SaveStarted: _Reader.on_save_started,
    ev.Saved: _Reader.on_saved,
    ev.Evaluated: _Reader.on_evaluated,
    ev.Stopped: _Reader.on_stopped,
    ev.RoundEnded: _Reader.on_round_ended,
    ev.AttemptEnded: _Reader.on_attempt_ended,
    ev.Ended: _Reader.on_ended,
}


def _cut(training: _Training) -> list[Segment]:
    """The training of one round as useful, saving and lost pieces."""
    all_kept = training.keeps >= training.last_step and not training.failed
    kept = training.end if all_kept else training.time_of(training.keeps)
    held = _merge([(max(a, training.start), min(b, training.end)) for a, b in training.saves])
    pieces: list[Segment] = []
    at = training.start
    for a, b in [*held, (training.end, training.end)]:
        for kind, start, end in (
            ("useful", at, min(a, kept)),
            ("lost", max(at, kept), a),
            ("saving", a, b),
        ):
            if end > start:
                pieces.append(Segment(kind, start, end, training.attempt, training.round))
        at = b
    return pieces


def _merge(intervals: list[tuple[float, float]]) -> list[tuple[float, float]]:
    out: list[tuple[float, float]] = []
    for a, b in sorted(i for i in intervals if i[1] > i[0]):
        if out and a <= out[-1][1]:
            out[-1] = (out[-1][0], max(b, out[-1][1]))
        else:
            out.append((a, b))
    return out


def timeline(history: History, until: float) -> list[Segment]:
    """The run's time from its submission to ``until`` (its end, or now), in order, without gaps."""
    reader = _Reader(history)
    for event in history.events:
        reader.read(event)
    if reader.since is not None and reader.kind != "away":
        reader.close(max(until, reader.last_t), "over")
    reader.settle()
    segments = reader.segments + [piece for training in reader.trainings for piece in _cut(training)]
    return sorted((s for s in segments if s.seconds > 0), key=lambda s: s.start)
