"""Runs that wait for other runs: when one may start, and when it never will. Files only, no SLURM."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from launcher.frozen import frozen
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome

__all__ = ["KINDS", "Predecessor", "broken", "judge", "read_predecessors", "state_of"]

Kind = Literal["ok", "any", "fails"]
KINDS: dict[str, str] = {"ok": "completed", "any": "ended", "fails": "failed"}
"""Each kind of waiting, and what the other run must have done."""


@frozen
class Predecessor:
    """A run that must have ended in a certain way first."""

    kind: Kind
    run_dir: str
    job_id: str = ""
    """SLURM's job id at submission; empty without SLURM."""

    @property
    def run(self) -> str:
        """Its id."""
        return Path(self.run_dir).name


def judge(kind: str, state: str) -> bool:
    """Whether a run that ended as ``state`` lets one start that waits for it in this way."""
    return kind == "any" or (state == "completed") == (kind == "ok")


def broken(one: Predecessor, state: str) -> str:
    """Why the waiting run never starts, as a sentence."""
    wanted = "had to fail first" if one.kind == "fails" else "had to complete first"
    was = {"cancelled": "was cancelled", "failed": "failed", "completed": "completed"}.get(state, f"ended as {state}")
    return f"It never started: {one.run}, which {wanted}, {was}."


def read_predecessors(values: Any) -> list[Predecessor]:
    """What a run's spec holds of them; foreign values are left out."""
    found = []
    for value in values if isinstance(values, list) else []:
        if isinstance(value, dict) and value.get("kind") in KINDS and isinstance(value.get("run_dir"), str):
            found.append(Predecessor(value["kind"], value["run_dir"], str(value.get("job_id") or "")))
    return found


def state_of(one: Predecessor) -> str | None:
    """How it has ended; None when it has not."""
    outcome = read_outcome(RunPaths(Path(one.run_dir)).outcome)
    return None if outcome is None else str(outcome.get("state"))
