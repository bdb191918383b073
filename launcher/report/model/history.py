"""Read all files of one run once. Missing, torn and older files are tolerated."""

from __future__ import annotations

import glob
import sys
from collections.abc import Iterator
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from launcher.frozen import frozen
from launcher.run.events import AttemptStarted, Ended, Event, EventKind, RoundStarted, RunSubmitted, Saved, parse_event
from launcher.run.files import Damage, read_lines, read_object
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
    def standing_saves(self) -> list[Saved]:
        """The checkpoints that were saved and that no later round has gone back behind, oldest first."""
        saves: list[Saved] = []
        for e in self.of(Saved, RoundStarted):
            if isinstance(e, Saved):
                saves.append(e)
            elif isinstance(e, RoundStarted):  # a script's own checkpoints have no step
                saves = [s for s in saves if s.step is None or s.step <= (e.resume_step or 0)]
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


def read_events(path: Path, damage: list[Damage] | None = None) -> list[Event]:
    """Return the events at ``path`` in the order written, and add to ``damage`` how many lines could not be read in full.

    A line without a type is left out; one without a time has that of the line before.
    """
    found: list[Damage] = []
    lines = read_lines(path, found)
    told = [line for line in lines if isinstance(line.get("type"), str)]
    odd = [_drop_strange(line) or line.get("t") is None for line in told]
    t = next((line["t"] for line in told if line.get("t") is not None), None)
    told = [] if t is None else told
    strange = len(lines) - len(told)
    for line in told:
        t = line["t"] = t if line.get("t") is None else line["t"]
    events = []
    for line, is_odd in zip(in_order(told), odd, strict=False):
        problems: list[str] = []
        events.append(parse_event(line, problems))
        strange += is_odd or bool(problems)
    if strange:
        found = [Damage(path.name, lines=strange + sum(d.lines for d in found), torn=any(d.torn for d in found))]
    if damage is not None:
        damage += found
    return events


def read_history(paths: RunPaths) -> History:
    """Read the run at ``paths``; never raises for what the files hold."""
    damage: list[Damage] = []
    state = _plain(read_object(paths.state, damage) or {})
    outcome = read_object(paths.outcome, damage)
    if "ranks" in state:
        state["ranks"] = [_plain(r) for r in as_list(state["ranks"]) if isinstance(r, dict)]
    return History(
        paths=paths,
        events=read_events(paths.events, damage),
        state=state,
        raw_outcome=None if outcome is None else _plain(outcome),
        spec=read_object(paths.spec, damage) or {},
        submission=_plain(sound_submission(read_object(paths.submission, damage) or {})),
        damage=damage,
    )
