"""Stop a run: now, or after saving."""

from __future__ import annotations

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
    from launcher.submission.sweeps.points import runs_of

    runs = runs_of(run)
    if len(runs) > 1 and not save:
        _stop_all(runs)
        return
    for paths in runs:
        _stop(paths, save)


def _stop_all(runs: list[RunPaths]) -> None:
    from launcher.submission.cancel import stop_all

    ending = stop_all(runs)
    ended = len(runs) - ending
    click.echo(f"{ended} of {len(runs)} points have ended{'; the others are ending' if ending else ''}")


def _stop(paths: RunPaths, save: bool) -> None:
    from launcher.submission.cancel import stop

    stopped = stop(paths, save=save)
    hint = "" if stopped.over else f"; launcher status {paths.id} shows when it has ended"
    click.echo(f"{stopped.sentence}{hint}")
