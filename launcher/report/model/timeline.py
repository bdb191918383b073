"""A run's time, cut into pieces that each have one name; pure.

queued     waiting for an allocation
start-up   from the allocation to the first optimizer step of an attempt
useful     training whose steps still count
saving     training paused by a checkpoint
lost       training whose steps had to be done again, or count for nothing in the end
recovery   from a failure to the first optimizer step of the next round in the same allocation
stopped    the allocation is held but nothing trains any more
away       between an end and the next submission: nobody wanted it to run; not counted

Steps are lost when a later round resumes before them; where inside a round that was in time is read off the (time, step)
points that its events give, straight lines between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from launcher.frozen import frozen
from launcher.report.model.history import History, as_dict
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
    attempt: int | None
    round: int | None
    points: list[tuple[float, float]]
    """(time, step), in order of time; the first is the start."""
    end: float = float("inf")
    saves: list[tuple[float, float]] = field(default_factory=list)
    """Intervals in which a checkpoint paused training."""
    keeps: float = float("inf")
    """Steps beyond this one were lost."""
    failed: bool = False
    """It ended by a failure: steps may have been done beyond the last known point."""

    def time_of(self, step: float) -> float:
        """When ``step`` was done, by straight lines between the known points."""
        if step <= self.points[0][1]:
            return self.start
        for (t0, s0), (t1, s1) in pairwise(self.points):
            if s0 < step <= s1:
                return t0 + (t1 - t0) * (step - s0) / (s1 - s0)
        return self.end

    @property
    def last_step(self) -> float:
        """The highest step known to be done; more may have been."""
        return max(step for _, step in self.points)


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
        self.base = 0
        """The step from which the round counts: its first report may tell a later one, where steps are short."""
        self.current: _Training | None = None
        """The open piece, while ``kind`` is training."""
        self.begun: dict[int | None, float] = {}
        """When the save of each step began, in this attempt."""
        self.last_t = 0.0
        self.allocated: dict[int | None, float] = {}
        """When each attempt's allocation began, where its end or the leader's picture says so."""
        for e in history.of(ev.AttemptEnded):
            if e.allocation_s is not None:
                self.allocated.setdefault(e.attempt, e.t - e.allocation_s)
        if began := history.state.get("allocation_t"):
            self.allocated.setdefault(history.state.get("attempt"), began)
        self.final = {e.attempt for e in history.of(ev.Ended)} - {e.attempt for e in history.of(ev.Requeued)}
        """The attempts that ended the run; every other that ended has given its allocation back."""
        script = as_dict(history.spec.get("work")).get("kind") in ("script", "module")
        told = history.last(ev.FirstStep) is not None or history.state.get("total_steps") is not None
        self.silent_script = script and not told

    def close(self, t: float, kind: str, *, failed: bool = False) -> None:
        """End the open piece at ``t``; what follows is of ``kind``. ``failed``: a training ended by a failure."""
        if self.current is not None:
            self.current.end = max(t, self.current.start)
            self.current.failed = failed
            self.current = None
        elif self.since is not None and t > self.since:
            held = self.kind not in ("queued", "away")
            self.segments.append(Segment(self.kind, self.since, t, self.attempt if held else None, self.round))
        self.since = t if self.since is None else max(self.since, t)
        self.kind = kind

    def read(self, e: Event) -> None:
        """Take in one event."""
        match e:
            case ev.RunSubmitted():
                self._on_submitted(e)
                return
            case ev.AttemptStarted():
                self._on_attempt_started(e)
            case ev.Waiting():
                self.close(
                    e.t, "queued"
                )  # without SLURM a chained run's leader waits for the others, and holds nothing
            case ev.RoundStarted():
                self._on_round_started(e)
            case ev.FirstStep():
                self._keep(self.base)  # a round that comes to no step has taken none back
                self._train(e.t, e.step or 0)
            case ev.SaveStarted():
                self.begun[e.step] = e.t
                self._point(e.t, e.step)
            case ev.Saved():
                self._on_saved(e)
            case ev.Evaluated():
                self._point(e.t, e.step)
            case ev.Stopped():
                if e.step not in self.begun:
                    self._point(e.t, e.step)
                self.close(e.t, "stopped")
            case ev.Fault():
                self._on_fault(e)
            case ev.RoundEnded() if self.current is not None:
                self.close(e.t, "recovery")
            case ev.AttemptEnded():
                self._on_attempt_ended(e)
            case ev.Ended():
                self.close(e.t, "away")
                if e.state != "completed":
                    self._keep(max((s.step for s in self.history.standing_saves if s.step is not None), default=0))
        self.last_t = max(self.last_t, e.t)

    def _on_submitted(self, e: ev.RunSubmitted) -> None:
        if self.since is None:
            self.since = e.t
        elif self.kind not in ("queued", "away"):  # the attempt before ended and left no message: nobody knew, or cared
            self.close(min(self._last_sign(), e.t), "away", failed=True)
        if self.kind == "away":
            self.close(e.t, "queued")

    def _last_sign(self) -> float:
        """When the attempt is last known to have lived: its leader's picture, or its last sample, is newer than its last event."""
        picture = self.history.state
        is_its = picture.get("attempt") == self.attempt  # the next attempt replaces it
        alive = picture.get("t") if is_its else self.history.last_sample_t(self.attempt)
        return max(self.last_t, alive or 0.0)

    def _on_attempt_started(self, e: ev.AttemptStarted) -> None:
        t, again = e.t, e.submitted_t
        if self.since is None:
            self.since = again or t
        if self.kind not in ("queued", "away"):  # the attempt before ended and left no message
            at_once = again is not None and self.last_t <= again <= t  # as SLURM requeues
            self.close(again if again is not None and at_once else min(self._last_sign(), t), "queued", failed=True)
        # An allocation begins some seconds before its leader's first event.
        self.close(max(min(t, self.allocated.get(e.attempt, t)), self.since), "start-up")
        self.attempt, self.round = e.attempt, None
        self.begun = {}

    def _on_round_started(self, e: ev.RoundStarted) -> None:
        if self.kind == "queued":
            self.close(e.t, "start-up")
        self.round, self.base = e.round, e.resume_step or 0
        if e.resume_step is not None:
            self._keep(e.resume_step)
        if self.current is not None:
            self.close(e.t, "recovery", failed=True)
        if self.silent_script:
            self._train(e.t, 0.0)

    def _keep(self, step: float) -> None:
        """Note that the steps done so far beyond ``step`` are lost."""
        if self.trainings and not self.silent_script:
            self.trainings[-1].keeps = min(self.trainings[-1].keeps, step)

    def _train(self, t: float, step: float) -> None:
        self.close(t, "training")
        self.current = _Training(t, self.attempt, self.round, [(t, step)])
        self.trainings.append(self.current)

    def _on_saved(self, e: ev.Saved) -> None:
        if e.step is None or not self.trainings:
            return
        begun = self.begun.get(e.step, e.t - (e.seconds or 0.0))
        if e.step not in self.begun:
            self._point(begun, e.step)
        whole = e.reason in ("stop", "end")  # nothing trains beside a last save
        blocked = e.t - begun if whole else e.blocked_s or 0.0
        if blocked > 0:
            self.trainings[-1].saves.append((begun, begun + blocked))

    def _on_fault(self, e: ev.Fault) -> None:
        if self.current is None:
            return
        t = e.t
        if isinstance(e, ev.Hang):  # nobody had progressed for that long
            t = max(self.current.points[-1][0], t - (e.limit_s or 0.0))
        if isinstance(e, ev.LeaderRevived):
            t = max(self.current.points[-1][0], t - (e.seconds or 0.0))
        if isinstance(e, ev.WorkerFailed) and e.step is not None and e.step >= self.current.last_step:
            self._point(t, e.step)
        self.close(t, "recovery", failed=True)

    def _on_attempt_ended(self, e: ev.AttemptEnded) -> None:
        if self.kind == "away":  # the run's end was written before that of the attempt
            self.kind = "stopped"
            self.close(e.t, "away")
            return
        self.close(e.t, "stopped" if e.attempt in self.final else "queued")

    def _point(self, t: float, step: float | None) -> None:
        if step is not None and self.current is not None and t >= self.current.points[-1][0]:
            self.current.points.append((t, step))


def _cut(training: _Training) -> Iterator[Segment]:
    """Yield the training of one round as useful, saving and lost pieces."""
    all_kept = training.keeps >= training.last_step and not training.failed
    kept = training.end if all_kept else training.time_of(training.keeps)
    at = training.start
    for begun, ended in [*sorted(training.saves), (training.end, training.end)]:
        a, b = (min(max(t, at), training.end) for t in (begun, ended))
        for kind, start, end in (
            ("useful", at, min(a, kept)),
            ("lost", max(at, kept), a),
            ("saving", a, b),
        ):
            if end > start:
                yield Segment(kind, start, end, training.attempt, training.round)
        at = max(a, b)


def timeline(history: History, until: float) -> list[Segment]:
    """The run's time from its submission to ``until`` (its end, or now), in order, without gaps."""
    reader = _Reader(history)
    for event in history.events:
        reader.read(event)
    if reader.since is not None and reader.kind != "away":
        reader.close(max(until, reader.last_t), "over")
    least = float("inf")
    for training in reversed(reader.trainings):
        training.keeps = least = min(least, training.keeps)
    segments = reader.segments + [piece for training in reader.trainings for piece in _cut(training)]
    return sorted((s for s in segments if s.seconds > 0), key=lambda s: s.start)
