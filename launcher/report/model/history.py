"""Read all files of one run once. Missing, torn and older files are tolerated."""

from __future__ import annotations

import glob
import sys
from collections.abc import Iterator
from dataclasses import field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from launcher.frozen import frozen
from launcher.run.events import (
    AttemptStarted,
    Ended,
    Event,
    EventKind,
    FirstStep,
    RoundStarted,
    RunSubmitted,
    Saved,
    parse_event,
)
from launcher.run.files import Damage, GrowingFile, last_before, parse_lines, read_object
from launcher.run.paths import RunPaths
from launcher.run.state import sound_submission

_MOST = sys.float_info.max
_MOST_STEPS = 10**15
_YEAR_3000 = 32_503_680_000.0


def as_number(value: object) -> float | None:
    """A finite number, or None for anything else (other versions and torn files hold anything)."""
    if type(value) is float or type(value) is int:  # asked some ten thousand times for a page
        return value if -_MOST <= value <= _MOST else None
    return None


def as_whole(value: object) -> int | None:
    """A finite number without its fraction, or None."""
    number = as_number(value)
    return None if number is None else int(number)


def as_time(value: object) -> float | None:
    """A time that a calendar knows, in seconds since the epoch, or None."""
    t = as_number(value)
    return t if t is not None and 0 <= t < _YEAR_3000 else None


def as_text(value: object, default: str = "") -> str:
    """A string as it is, None as ``default``, anything else as text."""
    return default if value is None else str(value)


def as_list(value: object) -> list[Any]:
    """A list as it is, anything else as an empty one."""
    return value if isinstance(value, list) else []


def as_dict(value: object) -> dict[str, Any]:
    """A dict as it is, anything else as an empty one."""
    return value if isinstance(value, dict) else {}


@frozen
class History:
    """What a run's files say. Events are in the order written, and so are their times (`in_order`)."""

    paths: RunPaths
    events: list[Event] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    raw_outcome: dict[str, Any] | None = None
    spec: dict[str, Any] = field(default_factory=dict)
    submission: dict[str, Any] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)
    """What of them could not be read (`launcher.report.model.problems` says it in words)."""
    quiet_s: float | None = None
    """For how long this reader has seen no change of them; None: it has looked once."""

    def of(self, *types: type[EventKind]) -> Iterator[EventKind]:
        """Events of the given types, oldest first."""
        return (e for e in self.events if isinstance(e, types))

    def last(self, *types: type[EventKind]) -> EventKind | None:
        """The newest event of the given types."""
        found = [newest for kind, newest in self._newest.items() if issubclass(kind, types)]
        return cast("EventKind | None", max(found, default=(0, None))[1])

    @cached_property
    def _newest(self) -> dict[type[Event], tuple[int, Event]]:
        """The newest event of each type and its place: `last` is asked some twenty times for one line of ``ls``."""
        return {type(e): (place, e) for place, e in enumerate(self.events)}

    @cached_property
    def outcome(self) -> dict[str, Any] | None:
        """How the run ended; None while it has not, or since it was resubmitted."""
        last = self.last(RunSubmitted, AttemptStarted, Ended)
        if self.raw_outcome is None:
            return dict(last.raw) if isinstance(last, Ended) else None
        # Whoever submits a run again moves its outcome away first, but one that is damaged may have no event beside it.
        of, begun = as_number(self.raw_outcome.get("attempt")), self.last(AttemptStarted)
        later = begun is not None and of is not None and (begun.attempt or 0) > of
        return None if later else self.raw_outcome

    @cached_property
    def is_unknown(self) -> bool:
        """Nothing of the events can be read, which are never empty, and no outcome tells of an end."""
        files = (self.paths.events.name, self.paths.outcome.name)
        damaged = any(d.file in files for d in self.damage)
        return not self.events and self.raw_outcome is None and (damaged or self.paths.events.exists())

    @cached_property
    def standing_saves(self) -> list[Saved]:
        """The checkpoints that were saved and that no later round has gone back behind, oldest first."""
        saves: list[Saved] = []
        newest = 0
        for e in self.events:
            done = newest
            match e:
                case Saved():
                    saves.append(e)
                    newest = max(newest, e.step or 0)  # a script's own checkpoint has no step
                    continue
                case RoundStarted() if e.resume_step is not None:
                    done = e.resume_step
                case FirstStep() if e.step is not None:  # scripts may resume in their own way
                    done = e.step - 1
            if done < newest:
                saves, newest = [s for s in saves if s.step is None or s.step <= done], done
        return saves

    @cached_property
    def checkpoints(self) -> list[int]:
        """The steps of the checkpoints that are in the run's folder now: old ones are deleted."""
        from launcher.run.manifest import MANIFEST  # with hash functions, which no other reader of a history needs

        names = glob.glob(f"step-*/{MANIFEST}", root_dir=self.paths.checkpoints)
        return [int(step) for name in names if (step := name.partition("/")[0].removeprefix("step-")).isdecimal()]

    @cached_property
    def _places(self) -> dict[int, int]:
        return {id(e): place for place, e in enumerate(self.events)}

    def after(self, one: Event, other: Event) -> bool:
        """Return whether ``one`` was written after ``other``, whatever their times are."""
        return self._places.get(id(one), -1) > self._places.get(id(other), -1)

    def last_sample_t(self, attempt: int | None) -> float | None:
        """When the leader of that attempt last wrote what its ranks use; None: not known."""
        if attempt is None:
            return None
        last = last_before(self.paths.samples, lambda line: (as_number(line.get("attempt")) or 0) > attempt) or {}
        return as_time(last.get("t")) if last.get("attempt") == attempt else None

    @cached_property
    def attempt(self) -> int | None:
        """The number of the newest attempt that a leader began; None before the first."""
        return max((e.attempt for e in self.events if e.attempt is not None), default=None)


def own_time(rank: dict[str, Any]) -> float | None:
    """Seconds of a step that this rank needed for itself; of a rank that does not know, of the whole step."""
    own = as_number(rank.get("own_s"))
    return as_number(rank.get("step_time_s")) if own is None else own


_NUMBERS = ("attempt", "round", "step", "rank")
_TIMES = ("t", "submitted_t", "saved_t", "allocation_t", "heartbeat_t")


def _drop_strange(value: dict[str, Any]) -> bool:
    """Delete the common keys that hold no whole number or no time. Return whether there were any."""
    strange = [key for key in _NUMBERS if value.get(key) is not None and not _is_whole(value[key])]
    strange += [key for key in _TIMES if value.get(key) is not None and as_time(value[key]) is None]
    for key in strange:
        del value[key]
    return bool(strange)


def _is_whole(value: object) -> bool:
    return type(value) is int and -_MOST_STEPS < value < _MOST_STEPS


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    _drop_strange(value)
    return value


def in_order(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same lines, none with a ``t`` beyond that of the next.

    The clock of an attempt's host may be behind that of the one before. The older attempt is then moved back in time, as a
    whole: within an attempt all times are of one clock.
    """
    later, back, attempt = float("inf"), 0.0, None
    for line in reversed(lines):
        if line.get("attempt") != attempt:
            attempt, back = line.get("attempt"), 0.0
        back = min(back, later - line["t"])
        line["t"] = later = line["t"] + back
    return lines


class EventFile:
    """The events of one file that is read again and again: what was appended since is parsed, and nothing else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin()

    def _begin(self) -> None:
        self._file, self._kept, self._strange = GrowingFile(self._path), list[Event](), 0

    def read(self, damage: list[Damage] | None = None) -> list[Event]:
        """Return the events in the order written, and add to ``damage`` how many lines could not be read in full.

        A line without a type is left out; one without a time has that of the line before. Never raises for the file.
        """
        name, problems = self._path.name, [] if damage is None else damage
        try:
            anew, (*whole, rest) = self._file.read()
        except OSError as error:
            self._begin()
            if not isinstance(error, FileNotFoundError):
                problems.append(Damage(name, error.strerror or str(error)))
            return []
        if anew:
            self._kept, self._strange = [], 0
        fresh = _parsed(name, whole, self._kept[-1:])
        if fresh is None:
            self._begin()
            return self.read(damage)
        self._kept += fresh[0]
        self._strange += fresh[1]
        found = list(self._kept)
        tail, odd = _parsed(name, [rest], found[-1:]) or ([], 0)
        torn = bool(rest.strip()) and not tail
        strange = self._strange + (0 if torn else odd)
        if torn or strange:
            problems.append(Damage(name, lines=strange, torn=torn))
        if not self._kept:
            self._begin()  # lines without a time have that of the first that has one
        return found + tail


def _parsed(name: str, lines: list[bytes], before: list[Event]) -> tuple[list[Event], int] | None:
    """Return the events in whole lines of the file ``name`` that follow ``before``, and how many could not be read in full.

    None where the clock went back: then what came before has to be moved, too (`in_order`).
    """
    damage: list[Damage] = []
    objects = parse_lines(name, [*lines, b""], damage)
    told = [line for line in objects if isinstance(line.get("type"), str)]
    odd = [_drop_strange(line) or line.get("t") is None for line in told]
    t = next((t for t in (*(e.t for e in before), *(line.get("t") for line in told)) if t is not None), None)
    told = [] if t is None else told
    strange = len(objects) - len(told) + sum(d.lines for d in damage)
    for line in told:
        t = line["t"] = t if line.get("t") is None else line["t"]
    if before and any(b < a for a, b in pairwise([before[-1].t, *(line["t"] for line in told)])):
        return None
    events = []
    for line, is_odd in zip(in_order(told), odd, strict=False):
        problems: list[str] = []
        events.append(parse_event(line, problems))
        strange += is_odd or bool(problems)
    return events, strange


def read_history(paths: RunPaths, events: EventFile | None = None) -> History:
    """Read the run at ``paths``; never raises for what the files hold. ``events``: its file of them, read before."""
    damage: list[Damage] = []
    state = _plain(read_object(paths.state, damage) or {})
    outcome = read_object(paths.outcome, damage)
    if "ranks" in state:
        state["ranks"] = [_plain(r) for r in as_list(state["ranks"]) if isinstance(r, dict)]
    return History(
        paths=paths,
        events=(events or EventFile(paths.events)).read(damage),
        state=state,
        raw_outcome=None if outcome is None else _plain(outcome),
        spec=read_object(paths.spec, damage) or {},
        submission=_plain(sound_submission(read_object(paths.submission, damage) or {})),
        damage=damage,
    )
