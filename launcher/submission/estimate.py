"""When would it start, and which would finish first: ``sbatch --test-only`` over node counts and partitions.

The job's time comes from the newest run of its name: steps per second there, scaled with the number of ranks (as if it
scaled perfectly, which the table says).
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from launcher.errors import SiteError
from launcher.run import index
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome, read_state
from launcher.slurm.commands import ask
from launcher.submission.plan import SubmissionPlan

__all__ = ["Estimate", "Speed", "ask_start", "measured", "order", "parse_start"]

_STARTS = re.compile(r"to start at (?P<when>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d|\d{9,})")


@dataclass(frozen=True)
class Speed:
    """What a run of the same job measured."""

    run_id: str
    steps_per_s: float
    ranks: int
    total_steps: int

    def seconds(self, ranks: int) -> float:
        """How long all steps would take on ``ranks`` ranks, if it scaled perfectly."""
        return self.total_steps / self.steps_per_s * self.ranks / ranks


@dataclass(frozen=True)
class Estimate:
    """One way to submit the job."""

    partition: str
    nodes: int
    ranks: int
    start_t: float | None
    """When SLURM would start it; None: it would not."""
    why: str
    """SLURM's words when it would not."""
    run_s: float | None
    """How long it would run; None: nothing was measured."""

    @property
    def end_t(self) -> float | None:
        """When it would have finished; without a measurement, when it would start."""
        return None if self.start_t is None else self.start_t + (self.run_s or 0.0)


def parse_start(text: str) -> float | None:
    """The start in what ``sbatch --test-only`` says, seconds since the epoch; None when it says none."""
    found = _STARTS.search(text)
    if found is None:
        return None
    when = found["when"]
    return float(when) if when.isdigit() else datetime.fromisoformat(when).timestamp()


def ask_start(plan: SubmissionPlan) -> tuple[float | None, str]:
    """When SLURM would start the plan's job, and its words otherwise. Nothing is submitted. Raises SiteError."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "test-only.sbatch"
        script.write_text(plan.sbatch, encoding="utf-8")
        answer = ask("sbatch", "--test-only", str(script), timeout_s=60.0)
    if answer.missing:
        raise SiteError("sbatch is not on the PATH: estimates need SLURM")
    start = parse_start(answer.out + answer.err)
    return start, "" if start is not None else answer.problem


def measured(name: str) -> Speed | None:
    """Speed of the newest run of the job ``name`` that measured one."""
    for ref in reversed(index.list_runs()):
        if index.job_name(ref.id) != name:
            continue
        speed = _speed(RunPaths(ref.path))
        if speed is not None:
            return speed
    return None


def _speed(paths: RunPaths) -> Speed | None:
    state = read_state(paths.state)
    rate, ranks, total = state.get("rate"), state.get("world_size"), state.get("total_steps")
    if not total:
        total = (read_outcome(paths.outcome) or {}).get("step")
    if not (isinstance(rate, int | float) and rate > 0 and isinstance(ranks, int) and ranks and isinstance(total, int)):
        return None
    return Speed(paths.id, float(rate), ranks, total)


def order(estimates: Sequence[Estimate]) -> list[Estimate]:
    """First to finish first; those that would never start last."""
    return sorted(estimates, key=lambda e: (e.end_t is None, e.end_t or 0.0, e.nodes))
