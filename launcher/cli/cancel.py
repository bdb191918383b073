"""Stop a run, now or after saving."""

from __future__ import annotations

import click

from launcher.cli._options import run_argument
from launcher.errors import LauncherError


@click.command()
@run_argument
@click.option("--save", is_flag=True, help="Save a checkpoint first, then stop.")
def command(run: str, save: bool) -> int:
    """Stop a run for good: it does not restart by itself. Of a sweep, all points stop.

    Without --save this does what scancel does. The run still saves if the time allows it.
    """
    from launcher.submission.cancel import cancel_points, cancel_run
    from launcher.submission.sweeps.points import own_runs_of

    runs, failed = own_runs_of(run), dict[str, LauncherError]()
    if len(runs) > 1 and not save:
        ending = cancel_points(runs, failed)
        over = len(runs) - ending - len(failed)
        click.echo(f"{over} of {len(runs)} points have ended{f'; {ending} are ending' if ending else ''}")
        return _told(failed)
    for paths in runs:
        stopped = cancel_run(paths, save=save)
        hint = "" if stopped.over else f"; launcher status {paths.id} shows when it has ended"
        click.echo(f"{stopped.sentence}{hint}")
    return 0


def _told(failed: dict[str, LauncherError]) -> int:
    """Say which points are not cancelled; return the exit code."""
    for run, error in failed.items():
        click.echo(f"{run} is not cancelled: {error}", err=True)
    return next((error.exit_code for error in failed.values()), 0)
