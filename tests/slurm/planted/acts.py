"""Cases of what happens to a run from outside: SLURM's acts, the user's, and accidents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cases import Words


@dataclass(frozen=True, kw_only=True)
class Act:
    """What is done to a run of two ranks, and what `launcher why` must make of it."""

    name: str
    how: Callable[..., Any]
    """``how(cluster, run)``; may return what undoes it."""
    kind: str | tuple[str, ...] = ()
    rank: int | None = None
    world: int = 2
    says: Words = ()
    must: Words = ()
    never: Sequence[str] = ()
    state: str = "ended"
    """When it is asked: ended, or as soon as the words are there while the run is pending or running."""
    before: bool = False
    """It is done before the run is submitted, with None in place of the run."""
    soon_s: float = 10.0
    job: dict[str, Any] = field(default_factory=dict)
    """Laid over the job, section by section."""


ACTS: dict[str, Act] = {}


class _Register:
    """`act("name", ...)` adds a case; `act.verb(cluster, "cancel", RUN)` runs a verb of the launcher."""

    verb: Callable[..., str]

    def __call__(self, name: str, **expected: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def add(how: Callable[..., Any]) -> Callable[..., Any]:
            assert name not in ACTS, name
            ACTS[name] = Act(name=name, how=how, **expected)
            return how

        return add


act = _Register()
