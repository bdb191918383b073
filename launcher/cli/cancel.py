"""Stop a run: now, or after saving."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from launcher.cli._options import run_argument

if TYPE_CHECKING:
    from launcher.run.paths import RunPaths


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
    from launcher.submission.stopping import NOTICE_S
    from launcher.submission.where import cancel_jobs, locate, states_of

    places = {paths.id: locate(paths) for paths in runs if read_outcome(paths.outcome) is None}
    jobs = {run_id: where.job_id for run_id, where in places.items()}
    left = states_of(list(jobs.values()))
    cancel_jobs([job for job in jobs.values() if job in left])
    end = time.monotonic() + NOTICE_S
    while left and time.monotonic() < end:
        time.sleep(0.5)
        left = states_of(list(jobs.values()))
    for paths in runs:
        if paths.id in jobs and jobs[paths.id] not in left:
            bury(paths, "it was cancelled")
    ended = len(runs) - len(left)
    click.echo(f"{ended} of {len(runs)} points have ended{'; the others are ending' if left else ''}")


def _stop(paths: RunPaths, save: bool) -> None:
    from launcher.submission.stopping import stop

    stopped = stop(paths, save=save)
    hint = "" if stopped.over else f"; launcher status {paths.id} shows when it has ended"
    click.echo(f"{stopped.sentence}{hint}")
