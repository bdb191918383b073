"""What events consist of: ranks, hosts, the cause of a failure."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from launcher.run.records import Record
from launcher.run.units import is_job_id

_LARGEST = {int: 10**15, float: sys.float_info.max}
"""The largest numbers that a run can have."""


class Part(Record):
    """A record of the history, for readers of any version.

    Its numbers are finite and no larger than a run can have them. Where a field's type does not admit None, what cannot be read
    is empty: "", 0, a list or an object without items.
    """

    @classmethod
    def from_wire(cls, values: Mapping[str, Any], problems: list[str]) -> Any:
        """As `Record.from_wire`, whose loop stands here again: a call for each number would make long histories 50 % slower to read."""
        made = object.__new__(cls)
        get = values.get
        for name, put, exact, absent, shape in cls._fields_read or cls._prepare():
            value = get(name, absent)
            kind = value.__class__
            if kind not in exact:
                value = cls._read_field(name, shape, values, problems)
            elif kind in _LARGEST and not -_LARGEST[kind] <= value <= _LARGEST[kind]:
                problems.append(f"{cls.type or cls.__name__}.{name}")
                value = shape.empty()
            put(made, value)
        return made

    @classmethod
    def _read_field(cls, name: str, shape: Any, values: Mapping[str, Any], problems: list[str]) -> Any:
        value = super()._read_field(name, shape, values, problems)
        return shape.empty() if value is None else value


class ChecksJobId:
    """Beside `Part`: reads a job id only where it is one. SLURM's commands get it as it is."""

    __slots__ = ()

    @classmethod
    def from_wire(cls, values: Mapping[str, Any], problems: list[str]) -> Any:
        """As that of the class beside it."""
        made = super().from_wire(values, problems)  # type: ignore[misc]
        if made.job_id and not is_job_id(made.job_id):
            problems.append(f"{made.type}.job_id")
            object.__setattr__(made, "job_id", None)
        return made


class Frame(Part):
    """One line of a traceback."""

    file: str
    line: int
    function: str
    code: str


class Cause(Part):
    """CAUSE: why a rank failed."""

    kind: str | None
    """One of the kinds of causes (`launcher.run.causes`)."""
    text: str | None
    """One sentence."""
    exception: str | None
    """Its type."""
    message: str | None
    frames: list[Frame]
    """Innermost first."""
    signal: int | None
    exit_code: int | None
    last_lines: list[str]
    """Of the rank's log."""
    oom: bool | None
    """The kernel killed it for memory."""
    place: str | None = None
    """Where the folder was moved to, for the kind ``gone``."""
    caused_by: list[str]
    """What the exception was raised from or while handling, and the members of a group: one line each, the nearest first."""

    @classmethod
    def plain(cls, kind: str, text: str, place: str | None = None) -> Cause:
        """Return a cause that is not the end of a process."""
        made: Cause = cls.from_wire({"kind": kind, "text": text, "place": place}, [])
        return made


class RankAt(Part):
    """A rank and its host."""

    rank: int | None
    host: str | None


class PlacedRank(RankAt):
    """A rank of a round."""

    node: int | None
    local_rank: int | None


class Laggard(RankAt):
    """A rank that the others wait for."""

    step: int | None
    phase: str | None
    frozen: bool | None = None
    """It was stopped (process state T)."""
    exit_code: int | None = None
    """Its process had ended with this code, before the last step: the others waited for it."""


class Victim(RankAt):
    """A rank that failed because another had."""

    after_s: float | None
    cause: Cause | None = None
    """The first of many victims have one."""


class HostCheck(Part):
    """One check of one host."""

    host: str | None
    name: str | None
    ok: bool | None
    detail: str | None
