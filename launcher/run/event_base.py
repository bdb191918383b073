"""What every event has: its time, its place in the run, and the JSON object that it was read from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.run.event_parts import Part


class _Raw:
    """Room for the object that an event was read from."""

    __slots__ = ("_raw",)
    _raw: dict[str, Any]


_put_raw = _Raw.__dict__["_raw"].__set__


class Event(_Raw, Part, family=True):
    """What every event has."""

    t: float
    """Two of one attempt give a duration; the order of events is that of the lines."""
    attempt: int | None
    """None before the first leader."""
    round: int | None = None

    @classmethod
    def from_wire(cls, values: Mapping[str, Any], problems: list[str]) -> Any:
        """As `Record.from_wire`; keeps ``values``."""
        made = super().from_wire(values, problems)
        _put_raw(made, values)
        return made

    @property
    def raw(self) -> dict[str, Any]:
        """The JSON object, with the keys that the class does not know."""
        return self._raw


class UnknownEvent(Event):
    """An event of another version."""

    @property
    def type(self) -> str:  # type: ignore[override]
        """Its type there."""
        return str(self.raw["type"])
