"""Stop a run, now or after saving."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from launcher.cli._options import run_argument
from launcher.errors import LauncherError

if TYPE_CHECKING:
    from launcher.run.paths import RunPaths


@click.command()
@run_argument
@click.option("--save", is_flag=True, help="Save a checkpoint first, then stop.")
def command(run: str, save: bool) -> int:
    """Stop a run for good: it does not restart by itself. Of a sweep, all points stop.

    Without --save this does what scancel does. The run still saves if the time allows it.
    """
    from launcher.submission.sweeps.points import own_runs_of

    runs, failed = own_runs_of(run), dict[str, LauncherError]()
    if len(runs) == 1:
        click.echo(_cancel_one(runs[0], save=save))
    elif save:
        _save_points(runs, failed)
    else:
        click.echo(_cancel_points(runs, failed))
    for name, error in failed.items():
        click.echo(f"{name} is not cancelled: {error}", err=True)
    return next((error.exit_code for error in failed.values()), 0)


def _cancel_one(paths: RunPaths, *, save: bool) -> str:
    from launcher.submission.cancel import cancel_run

    stopped = cancel_run(paths, save=save)
    return (
        stopped.sentence if stopped.over else f"{stopped.sentence}; launcher status {paths.id} shows when it has ended"
    )


def _cancel_points(runs: list[RunPaths], failed: dict[str, LauncherError], which: str = "points") -> str:
    from launcher.submission.cancel import cancel_points

    ending = cancel_points(runs, failed)
    over = len(runs) - ending - len(failed)
    return f"{over} of {len(runs)} {which} have ended{f'; {ending} are ending' if ending else ''}"


def _save_points(runs: list[RunPaths], failed: dict[str, LauncherError]) -> None:
    """Cancel the points that wait, before one of them starts; then ask the others to save. One that fails keeps no other from it."""
    from launcher.submission.cancel import waiting_points

    waiting = waiting_points(runs)
    ids = {paths.id for paths in waiting}
    orders = [(ids, partial(_cancel_points, waiting, failed, "waiting points"))] if waiting else []
    orders += [({paths.id}, partial(_cancel_one, paths, save=True)) for paths in runs if paths.id not in ids]
    for names, order in orders:
        try:
            sentence = order()
        except LauncherError as error:
            failed.update(dict.fromkeys(sorted(names), error))
        else:
            click.echo(sentence)
