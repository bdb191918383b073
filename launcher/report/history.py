"""All of one run's files that tell its story, read once; whatever is missing, torn or older is survived."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from launcher.run import events as events_module
from launcher.run.files import read_json
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome, read_state

__all__ = ["Event", "History", "as_list", "as_number", "as_text", "read_history"]

Event = dict[str, Any]


def as_number(value: object) -> float | None:
    """A finite number, or None for anything else (other versions and torn files hold anything)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if math.isfinite(value) else None


def as_text(value: object, default: str = "") -> str:
    """A string as it is, None as ``default``, anything else as text."""
    return default if value is None else str(value)


def as_list(value: object) -> list[Any]:
    """A list as it is, anything else as an empty one."""
    return value if isinstance(value, list) else []


def as_dict(value: object) -> dict[str, Any]:
    """A dict as it is, anything else as an empty one."""
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True)
class History:
    """What a run's files say. Events are in the order written and all have a finite ``t``."""

    paths: RunPaths
    events: list[Event] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)
    raw_outcome: dict[str, Any] | None = None
    spec: dict[str, Any] = field(default_factory=dict)
    submission: dict[str, Any] = field(default_factory=dict)

    def of(self, *types: str) -> Iterator[Event]:
        """Events of the given types, oldest first."""
        return (e for e in self.events if e["type"] in types)

    def last(self, *types: str) -> Event | None:
        """The newest event of the given types."""
        return next((e for e in reversed(self.events) if e["type"] in types), None)

    @cached_property
    def outcome(self) -> dict[str, Any] | None:
        """How the run ended; None while it has not, or since it was resubmitted."""
        ended = self.raw_outcome
        if ended is None:
            event = self.last("ended")
            ended = dict(event) if event else None
        if ended is None:
            return None
        end = as_number(ended.get("t"))
        again = self.last("submitted", "attempt_started")
        if again is not None and end is not None and again["t"] > end:
            return None
        return ended

    @cached_property
    def attempt(self) -> int | None:
        """The number of the newest attempt that a leader began; None before the first."""
        numbers = [e["attempt"] for e in self.events if isinstance(e.get("attempt"), int)]
        return max(numbers, default=None)


def read_history(paths: RunPaths) -> History:
    """Read the run at ``paths``; never raises for what the files hold."""
    events = [e for e in events_module.read(paths.events) if as_number(e.get("t")) is not None]
    return History(
        paths=paths,
        events=events,
        state=read_state(paths.state),
        raw_outcome=read_outcome(paths.outcome),
        spec=as_dict(read_json(paths.spec)),
        submission=as_dict(read_json(paths.submission)),
    )
