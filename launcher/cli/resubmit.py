"""Continue a run, from its latest or another checkpoint; resources may change."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

import click

from launcher.cli._options import complete_run

if TYPE_CHECKING:
    from launcher.submission.resubmit import Again


@click.command()
@click.argument("run", shell_complete=complete_run)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--from", "from_", default="latest", metavar="latest|STEP", show_default=True, help="The checkpoint.")
@click.option("--fork", "fork_name", metavar="NAME", help="A new run of that name, beginning from the checkpoint.")
@click.option("--failed", is_flag=True, help="RUN is a sweep: all its points that failed, as one array.")
@click.option("--code", "fresh_code", is_flag=True, help="Copy today's code; else the run keeps its own copy.")
@click.option("--unsafe-load", is_flag=True, help="Unpickle old checkpoints in full: runs any code that they hold.")
@click.option("--backend", type=click.Choice(["auto", "slurm", "local"]), help="Where; else where it was.")
@click.option("--wait", is_flag=True, help="Follow it to its end; the exit code tells how it ended.")
def command(
    run: str,
    overrides: tuple[str, ...],
    from_: str,
    fork_name: str | None,
    failed: bool,
    fresh_code: bool,
    unsafe_load: bool,
    backend: Literal["auto", "slurm", "local"] | None,
    wait: bool,
) -> None:
    """Continue RUN as a new attempt of itself; KEY=VALUE changes its job (fewer nodes, a longer limit, more epochs)."""
    from launcher.cli.submit import say, wait_for
    from launcher.submission import resubmit
    from launcher.submission.sweeps.points import single

    how = resubmit.Again(
        overrides=overrides,
        step=_step(from_),
        unsafe_load=unsafe_load,
        fresh_code=fresh_code,
        backend=backend,
        argv=tuple(sys.argv),
    )
    if failed:
        if fork_name:
            raise click.UsageError("--failed continues points as themselves; --fork makes a new run of one.")
        _failed(run, how, wait)
        return
    paths = single(run)
    handed = resubmit.fork(paths, fork_name, how) if fork_name else resubmit.resubmit(paths, how)
    say(handed)
    if wait:
        wait_for(handed)


def _step(text: str) -> int | None:
    if text == "latest":
        return None
    if not text.isdigit():
        raise click.BadParameter(f"{text!r} is neither latest nor a step.", param_hint="--from")
    return int(text)


def _failed(run: str, how: Again, wait: bool) -> None:
    """Every point of the sweep that failed, or whose processes died without an outcome: one array."""
    from launcher.errors import StateError
    from launcher.run import index
    from launcher.submission.sweeps.points import points_of
    from launcher.submission.sweeps.resubmit_points import failed_of, resubmit_points

    sweep = index.resolve(run)
    if not index.is_sweep(sweep):
        raise StateError(f"{sweep.name} is no sweep: launcher resubmit {sweep.name} continues it")
    chosen = failed_of(points_of(sweep))
    if not chosen:
        click.echo(f"no point of {sweep.name} has failed")
        return
    for array in resubmit_points(sweep, chosen, how):
        many = len(array.runs) > 1
        what = f"{len(array.runs)} points, SLURM array {array.job_id}" if many else f"SLURM job {array.job_id}"
        click.echo(f"{sweep.name} submitted again: {what}")
        for warning in array.plan.warnings:
            click.echo(f"  warning  {warning}")
        for name in array.runs:
            click.echo(f"  point    {name}")
    if wait:
        from launcher.cli._follow import follow_points

        follow_points(sweep.name, chosen)
