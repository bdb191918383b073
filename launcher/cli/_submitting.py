"""What `submit`, `run` and `resubmit` share: submit a job, print what was submitted, wait for its end."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from launcher.cli._follow_run import follow_run, report_end
from launcher.config.load.load import LoadedJob
from launcher.run.after import read_predecessors
from launcher.run.index import short_name
from launcher.run.units import short_list
from launcher.submission.dependencies import check_same_backend, predecessors
from launcher.submission.facts.facts import BackendName, Facts
from launcher.submission.facts.gather import gather_facts
from launcher.submission.liveness import locate
from launcher.submission.plan.plan import plan
from launcher.submission.plan.submission_plan import SubmissionPlan
from launcher.submission.submit import Submitted, submit_run

if TYPE_CHECKING:
    from launcher.submission.sweeps.submit_sweep import SubmittedSweep


def planning_facts(loaded: LoadedJob, backend: BackendName) -> Facts:
    """Gather what the plan of a job depends on, the runs that it comes after included."""
    return gather_facts(loaded, backend=backend, after=predecessors(loaded.job.after))


def plan_job(loaded: LoadedJob, facts: Facts) -> SubmissionPlan:
    """Plan a job; nothing is submitted."""
    made = plan(loaded, facts)
    check_same_backend(list(facts.after), made.backend)
    return made


def submit_job(loaded: LoadedJob, facts: Facts, **how: Any) -> Submitted:
    """Plan a job and submit it: exactly what `plan` prints. ``how``: as `submit_run` takes it."""
    return submit_run(partial(plan_job, loaded), facts, argv=sys.argv, **how)


def submit_sweep(loaded: LoadedJob, backend: BackendName) -> SubmittedSweep:
    """Plan a sweep and submit it as one array."""
    from launcher.submission.sweeps.submit_sweep import submit_points

    after = predecessors(loaded.job.after)
    check_same_backend(after, "slurm")
    return submit_points(loaded, gather_facts(loaded, backend=backend, after=after), sys.argv)


def print_submitted(one: Submitted) -> None:
    """Print what was submitted and the commands that follow and stop it."""
    made, run, word = one.plan, one.plan.spec.id, _word(one.paths.root)
    stop = f"launcher cancel {word} --save"
    if made.backend == "slurm":
        where = f"SLURM job {one.job_id}, pending"
        stop += f"     (scancel {one.job_id} works too)"
    elif first := read_predecessors(made.spec.after):
        where = f"on this machine, waiting for {short_list([one.run for one in first])}"
    else:
        where = f"running on this machine, {'GPUs' if made.spec.gpus_per_node else 'CPUs'} (no SLURM asked)"
    _print_next(run, where, made.warnings, f"launcher logs {word} -f", stop, made.run_dir)


def print_sweep(one: SubmittedSweep) -> None:
    """Print what was submitted of a sweep and the commands that follow and stop it."""
    word = _word(one.root)
    stop = f"launcher cancel {word}     (scancel {' '.join(one.arrays)} works too)"
    what = f"{len(one.points)} points, SLURM array {', '.join(one.arrays)}"
    _print_next(one.root.name, what, one.points[0].plan.warnings, f"launcher ls --sweep {word}", stop, str(one.root))


def _print_next(run: str, what: str, warnings: Sequence[str], follow: str, stop: str, folder: str) -> None:
    click.echo(f"{run} submitted: {what}")
    print_warnings(warnings)
    click.echo(f"  follow   {follow}\n  stop     {stop}\n  run      {below_here(folder)}")


def print_warnings(warnings: Sequence[str]) -> None:
    """Print a plan's warnings, one a line."""
    for warning in warnings:
        click.echo(f"  warning  {warning}")


def _word(folder: Path) -> str:
    """Return what names the run, or the sweep, in a command."""
    return shlex.quote(short_name(folder))


def below_here(path: str) -> str:
    """Return ``path`` relative to the working directory where it lies below it."""
    return path.removeprefix(os.getcwd() + os.sep)


def wait_for(one: Submitted) -> None:
    """Follow a run until it ends; Ctrl-C stops the following, not the run."""
    where, run = locate(one.paths), one.plan.spec.id
    try:
        outcome = follow_run(one.paths, where.alive)
    except KeyboardInterrupt:
        click.echo(f"\nstopped waiting; {run} continues. launcher cancel {run} stops it", err=True)
        raise
    report_end(one.paths, outcome)
