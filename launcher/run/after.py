"""Decide when a run that waits for other runs may start, and when it never will. Files only, no SLURM."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

from launcher.frozen import frozen
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome

WaitKind = Literal["ok", "any", "fails"]
"""What the other run must have done: completed, ended, failed."""


@frozen
class Predecessor:
    """A run that must have ended in a certain way first."""

    kind: WaitKind
    run_dir: str
    job_id: str = ""
    """SLURM's job id at submission; empty without SLURM."""

    @property
    def run(self) -> str:
        """Return its id."""
        return Path(self.run_dir).name


def may_start(kind: str, state: str) -> bool:
    """Return whether a run that waits in this way for one that ended as ``state`` may start."""
    return kind == "any" or (state == "completed") == (kind == "ok")


def broken(one: Predecessor, state: str) -> str:
    """Return why the waiting run never starts, as a sentence."""
    wanted = "had to fail first" if one.kind == "fails" else "had to complete first"
    was = {"cancelled": "was cancelled", "failed": "failed", "completed": "completed"}.get(state, f"ended as {state}")
    return f"It never started: {one.run}, which {wanted}, {was}."


def read_predecessors(values: Any) -> list[Predecessor]:
    """Read them from a run's spec; invalid values are left out."""
    return [
        Predecessor(value["kind"], value["run_dir"], str(value.get("job_id") or ""))
        for value in (values if isinstance(values, list) else [])
        if isinstance(value, dict) and value.get("kind") in get_args(WaitKind) and isinstance(value.get("run_dir"), str)
    ]


def state_of(one: Predecessor) -> str | None:
    """Return how it ended; None while it has not."""
    outcome = read_outcome(RunPaths(Path(one.run_dir)).outcome)
    return None if outcome is None else str(outcome.get("state"))
