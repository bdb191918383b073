"""Stop a run: now, or after saving."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from launcher.cli._options import run_argument

if TYPE_CHECKING:
    from launcher.run.paths import RunPaths
    from launcher.submission.where import Where

_NOTICE_S = 15.0
"""How long a cancel is watched taking effect before the rest is left to SLURM."""


@click.command()
@run_argument
@click.option("--save", is_flag=True, help="Stop at an agreed step and save first.")
def command(run: str, save: bool) -> None:
    """Stop a run; it never comes back by itself. RUN may be a sweep: all its points.

    Plain cancel is scancel (which works as well); the run still saves what time allows.
    """
    from launcher.submission.points import runs_of

    runs = runs_of(run)
    if len(runs) > 1 and not save:
        _stop_all(runs)
        return
    for paths in runs:
        _stop(paths, save)


def _stop_all(runs: list[RunPaths]) -> None:
    """A sweep's points: one scancel for all, then outcomes for those that nobody led."""
    from launcher.run.state import read_outcome
    from launcher.submission.requests import bury
    from launcher.submission.where import cancel_jobs, locate, states_of

    places = {paths.id: locate(paths) for paths in runs if read_outcome(paths.outcome) is None}
    jobs = {run_id: where.job_id for run_id, where in places.items()}
    left = states_of(list(jobs.values()))
    cancel_jobs([job for job in jobs.values() if job in left])
    end = time.monotonic() + _NOTICE_S
    while left and time.monotonic() < end:
        time.sleep(0.5)
        left = states_of(list(jobs.values()))
    for paths in runs:
        if paths.id in jobs and jobs[paths.id] not in left:
            bury(paths, "it was cancelled")
    ended = len(runs) - len(left)
    click.echo(f"{ended} of {len(runs)} points have ended{'; the others are ending' if left else ''}")


def _stop(paths: RunPaths, save: bool) -> None:
    from launcher.errors import SiteError, StateError
    from launcher.run.state import read_outcome
    from launcher.submission.requests import request_stop
    from launcher.submission.where import locate

    outcome = read_outcome(paths.outcome)
    if outcome is not None:
        click.echo(f"{paths.id} has ended already: {outcome.get('state')}")
        return
    where = locate(paths)
    if not where.alive(fresh=True):
        click.echo(f"{paths.id} is not running any more")
        return
    pending = where.backend == "slurm" and where.slurm_state() in ("PENDING", "REQUEUED")
    if save and not pending:
        request_stop(paths, save=True)
        try:
            where.ask_to_save()
        except (SiteError, StateError):
            paths.request.unlink(missing_ok=True)
            raise
        click.echo(f"{paths.id} saves and ends; launcher status {paths.id} shows when")
        return
    if where.backend == "slurm":
        request_stop(paths, save=False)  # the run may be on its way to another job at this moment: that one reads it
    job = where.job_id
    try:
        where.cancel()
    except (SiteError, StateError):
        if where.backend == "slurm":
            paths.request.unlink(missing_ok=True)  # it was not cancelled: a later attempt must not believe so
        raise
    _watch(paths, where, job, pending)


def _watch(paths: RunPaths, where: Where, job: str, pending: bool) -> None:
    """Until it is gone, so that a run nobody led has an outcome too."""
    from launcher.run.state import read_outcome
    from launcher.submission.requests import bury

    end = time.monotonic() + _NOTICE_S
    while time.monotonic() < end:
        if read_outcome(paths.outcome) is not None:
            click.echo(f"{paths.id} is cancelled")
            return
        if where.backend == "slurm" and where.job_id != job:
            job = where.job_id
            where.cancel()
        if not where.alive(fresh=True):
            bury(paths, "it was cancelled before it had started" if pending else "it was cancelled")
            click.echo(f"{paths.id} is cancelled")
            return
        time.sleep(0.5)
    click.echo(f"{paths.id} is being cancelled; launcher status {paths.id} shows when it has ended")
