"""Estimate when a job would start and end: ``sbatch --test-only`` over node counts and partitions.

The job's time comes from the newest runs of its name, and its rehearsals on real nodes: the one that had as many ranks; else
the one nearest to it, scaled as if it scaled perfectly (which the table says).
"""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from launcher.errors import SiteError
from launcher.frozen import frozen
from launcher.run import index, rehearsals
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome, read_state
from launcher.slurm.commands import ask
from launcher.slurm.environ import environment_for_sbatch
from launcher.slurm.jobs import moment
from launcher.submission.plan.submission_plan import SubmissionPlan

_STARTS = re.compile(r"to start at (?P<when>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d|\d{9,})")


@frozen
class Speed:
    """What a run of the same job measured."""

    run_id: str
    steps_per_s: float
    ranks: int
    total_steps: int

    def seconds(self, ranks: int) -> float:
        """Return how long all steps would take on ``ranks`` ranks, if it scaled perfectly."""
        return self.total_steps / self.steps_per_s * self.ranks / ranks


@frozen
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
    speed_of: str = ""
    """The run whose speed that is."""
    scaled: bool = False
    """That run had another number of ranks."""

    @property
    def end_t(self) -> float | None:
        """When it would end; without a measurement, when it would start."""
        return None if self.start_t is None else self.start_t + (self.run_s or 0.0)


def parse_start(text: str) -> float | None:
    """Read the start that ``sbatch --test-only`` prints, as seconds since the epoch; None when it prints none."""
    found = _STARTS.search(text)
    return moment(found["when"]) if found else None


def ask_start(plan: SubmissionPlan) -> tuple[float | None, str]:
    """Ask when SLURM would start the plan's job; return its words otherwise. Submits nothing. Raises SiteError."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "test-only.sbatch"
        script.write_text(plan.sbatch, encoding="utf-8")
        environ = environment_for_sbatch(os.environ, plan.parameters, plan.spec.pass_names)
        answer = ask("sbatch", "--test-only", str(script), timeout_s=60.0, environ=environ)
    if answer.missing:
        raise SiteError("sbatch is not on the PATH: load SLURM's module, estimates need it")
    start = parse_start(answer.out + answer.err)
    return start, "" if start is not None else answer.problem


def measured_speeds(name: str) -> list[Speed]:
    """Return the newest speed of the job ``name`` at each number of ranks that a run of it had."""
    runs = (_speed_of(RunPaths(ref.path)) for ref in reversed(index.list_runs()) if index.job_name(ref.id) == name)
    rehearsed = (
        _speed("a rehearsal", one.get("steps_per_s"), one.get("ranks"), one.get("total_steps"))
        for one in reversed(rehearsals.read_rehearsals())
        if one.get("name") == name and one.get("real")
    )
    found: dict[int, Speed] = {}
    for speed in (*runs, *rehearsed):
        if speed is not None:
            found.setdefault(speed.ranks, speed)
    return list(found.values())


def nearest_speed(speeds: Collection[Speed], ranks: int) -> Speed | None:
    """Return the speed to reckon with for ``ranks`` ranks: at that very number, else at the nearest by ratio."""
    return min(speeds, key=lambda s: abs(math.log(s.ranks / ranks)), default=None)


def _speed(run_id: str, rate: Any, ranks: Any, total: Any) -> Speed | None:
    if not (isinstance(rate, int | float) and rate > 0 and isinstance(ranks, int) and ranks and isinstance(total, int)):
        return None
    return Speed(run_id, float(rate), ranks, total)


def _speed_of(paths: RunPaths) -> Speed | None:
    state = read_state(paths.state)
    total = state.get("total_steps") or (read_outcome(paths.outcome) or {}).get("step")
    return _speed(paths.id, state.get("rate"), state.get("world_size"), total)


def order(estimates: Sequence[Estimate]) -> list[Estimate]:
    """Sort by end; those that would never start come last."""
    return sorted(estimates, key=lambda e: (e.end_t is None, e.end_t or 0.0, e.nodes))
