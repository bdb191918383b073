"""Cases of planted failures: what happens on which rank, and what `launcher why` must make of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Words = Sequence["str | tuple[str, ...]"]
"""Each must be there; of a tuple any."""

NOT_NOTICED = "the planted failure was not noticed"
PATIENCE_S = 45.0
"""A failure that nobody has noticed for so long ends its round."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One failure and what must be said of it. Comparisons ignore case."""

    name: str
    how: Callable[..., Any]
    loop: str
    """function, script or attached: what calls `how` on every rank."""
    kind: str | tuple[str, ...] = ()
    """Of ``why --json``; any of a tuple, () for any."""
    rank: int | str | None = None
    """The rank that the first sentence names first; "all"; None: none is at fault alone."""
    says: Words = ()
    """Must be in the first sentence."""
    must: Words = ()
    """Must be somewhere in the text."""
    never: Sequence[str] = ()
    """Must be nowhere."""
    soon_s: float = 10.0
    """From the failure to the decision that names it."""
    late: bool = False
    """After 60 steps instead of 3: a hang's limit is learned from steps before it."""
    world: int = 2
    """Ranks, two on a host where they are four."""
    live: bool = False
    """Nothing fails: it is asked while the run trains, and ``launcher status`` must say it too."""

    @property
    def at(self) -> int:
        """After how many steps it happens."""
        return 60 if self.late else 3


CASES: dict[str, Case] = {}


def _add(name: str, loop: str, **expected: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(how: Callable[..., Any]) -> Callable[..., Any]:
        key = f"{loop}: {name}"
        assert key not in CASES, key
        CASES[key] = Case(name=key, how=how, loop=loop, **expected)
        return how

    return add


def function_case(name: str, **expected: Any) -> Any:
    """Add a case that a function's worker runs, as ``how(worker)``."""
    return _add(name, "function", **expected)


def script_case(name: str, **expected: Any) -> Any:
    """Add a case that an unmodified script runs, as ``how(rank, world_size)``."""
    return _add(name, "script", **expected)


def attached_case(name: str, **expected: Any) -> Any:
    """Add a case that a script with `launcher.attach` runs, as ``how(rank, world_size)``."""
    return _add(name, "attached", **expected)


def live_case(name: str, *, where: str = "function", **expected: Any) -> Any:
    """Add a case in which nothing fails: ``how(rank, world_size, step)`` is called before every step and may return its loss."""
    return _add(f"live: {name}", where, live=True, **expected)


def exchange(model: Any, case: Case | None) -> None:
    """What every step does together with the other ranks: a backward pass where waits are measured, as DDP does, else an all-reduce."""
    import torch

    if case is not None and case.live:
        model(torch.ones(2, 8)).sum().backward()
    else:
        torch.distributed.all_reduce(torch.ones(1))


class Planter:
    """Runs the case of this round inside a training loop."""

    def __init__(self, names: Sequence[str]) -> None:
        number = int(os.environ["LAUNCHER_ROUND"])
        name = names[number] if number < len(names) else ""
        self.case = CASES.get(name)
        self.steps = 1_000_000 if name else 5
        rank = os.environ["RANK"]
        self._mark = Path(os.environ["LAUNCHER_RUN_DIR"], f"planted-{number}-{rank}")
        self._since: float | None = None

    def before(self, step: int, *who: Any) -> float | None:
        """What happens before a step; returns the loss to report, where the case says."""
        case = self.case
        if case is None:
            return None
        if case.live:
            loss = case.how(*who, step)
            return None if loss is None else float(loss)
        if step == case.at:
            self._mark.touch()
            self._since = time.monotonic()
            case.how(*who)
        if self._since is not None and time.monotonic() - self._since > PATIENCE_S:
            raise RuntimeError(NOT_NOTICED)
        return None
