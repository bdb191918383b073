"""Stop a run, now or after saving."""

from __future__ import annotations

import click

from launcher.cli._options import run_argument


@click.command()
@run_argument
@click.option("--save", is_flag=True, help="Save a checkpoint first, then stop.")
def command(run: str, save: bool) -> None:
    """Stop a run for good: it does not restart by itself. Of a sweep, all points stop.

    Without --save this does what scancel does. The run still saves if the time allows it.
    """
    from launcher.submission.cancel import cancel_points, cancel_run
    from launcher.submission.sweeps.points import own_runs_of

    runs = own_runs_of(run)
    if len(runs) > 1 and not save:
        ending = cancel_points(runs)
        click.echo(
            f"{len(runs) - ending} of {len(runs)} points have ended{'; the others are ending' if ending else ''}"
        )
        return
    for paths in runs:
        stopped = cancel_run(paths, save=save)
        hint = "" if stopped.over else f"; launcher status {paths.id} shows when it has ended"
        click.echo(f"{stopped.sentence}{hint}")
