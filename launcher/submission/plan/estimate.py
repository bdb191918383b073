"""When would it start, and which would finish first: ``sbatch --test-only`` over node counts and partitions.

The job's time comes from the newest runs of its name, and its rehearsals on real nodes: the one that had as many ranks; else
the one nearest to it, scaled as if it scaled perfectly (which the table says).
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from launcher.errors import SiteError
from launcher.frozen import frozen
from launcher.run import index, rehearsals
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome, read_state
from launcher.slurm.commands import ask
from launcher.submission.plan.plan import SubmissionPlan

__all__ = ["Estimate", "Speed", "ask_start", "measured", "nearest", "order", "parse_start"]

_STARTS = re.compile(r"to start at (?P<when>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d|\d{9,})")


@frozen
class Speed:
    """What a run of the same job measured."""

    run_id: str
    steps_per_s: float
    ranks: int
    total_steps: int

    def seconds(self, ranks: int) -> float:
        """How long all steps would take on ``ranks`` ranks, if it scaled perfectly."""
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


def measured(name: str) -> list[Speed]:
    """The newest speed of the job ``name`` at each number of ranks that any run of it had."""
    found: dict[int, Speed] = {}
    for ref in reversed(index.list_runs()):
        if index.job_name(ref.id) == name and (speed := _speed(RunPaths(ref.path))) is not None:
            found.setdefault(speed.ranks, speed)
    for told in reversed(rehearsals.read()):
        if told.get("name") == name and told.get("real") and (speed := _rehearsed(told)) is not None:
            found.setdefault(speed.ranks, speed)
    return list(found.values())


def nearest(speeds: Collection[Speed], ranks: int) -> Speed | None:
    """The speed to reckon with for ``ranks`` ranks: at that very number, else at the nearest by ratio."""
    return min(speeds, key=lambda s: abs(math.log(s.ranks / ranks)), default=None)


def _rehearsed(told: dict[str, Any]) -> Speed | None:
    return _checked("a rehearsal", told.get("steps_per_s"), told.get("ranks"), told.get("total_steps"))


def _checked(run_id: str, rate: Any, ranks: Any, total: Any) -> Speed | None:
    if not (isinstance(rate, int | float) and rate > 0 and isinstance(ranks, int) and ranks and isinstance(total, int)):
        return None
    return Speed(run_id, float(rate), ranks, total)


def _speed(paths: RunPaths) -> Speed | None:
    state = read_state(paths.state)
    rate, ranks, total = state.get("rate"), state.get("world_size"), state.get("total_steps")
    if not total:
        total = (read_outcome(paths.outcome) or {}).get("step")
    return _checked(paths.id, rate, ranks, total)


def order(estimates: Sequence[Estimate]) -> list[Estimate]:
    """First to finish first; those that would never start last."""
    return sorted(estimates, key=lambda e: (e.end_t is None, e.end_t or 0.0, e.nodes))
