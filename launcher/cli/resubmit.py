"""Continue a run from a checkpoint, with other resources if you like."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from launcher.cli._options import ArgsCommand, run_argument, script_args, vouched, wait_option
from launcher.errors import StateError
from launcher.run.units import whole_number

if TYPE_CHECKING:
    from launcher.submission.facts.facts import BackendName
    from launcher.submission.resubmit import Again


@click.command(cls=ArgsCommand)
@run_argument
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]... [-- ARGS]...")
@click.option(
    "--from", "from_", default="latest", metavar="latest|STEP", show_default=True, help="Checkpoint to continue from."
)
@click.option("--fork", "fork_name", metavar="NAME", help="Start a new run of that name from the checkpoint.")
@click.option("--failed", is_flag=True, help="RUN is a sweep: resubmit its failed points as one array.")
@click.option(
    "--code", "fresh_code", is_flag=True, help="Copy the code as it is now. Default: keep the run's own copy."
)
@click.option("--unsafe-load", is_flag=True, help="Unpickle old checkpoints in full. This can run any code in them.")
@click.option("--backend", type=click.Choice(["auto", "slurm", "local"]), help="Where to run. Default: where it ran.")
@wait_option
def command(
    run: str, overrides: tuple[str, ...], from_: str, fork_name: str | None, failed: bool, fresh_code: bool, unsafe_load: bool,
    backend: BackendName | None, wait: bool,
) -> None:  # fmt: skip
    """Continue RUN as a new attempt of the same run.

    KEY=VALUE changes its job: fewer nodes, a longer time limit, more epochs. Words after -- replace the script's arguments.
    """
    from launcher.cli._submitting import print_submitted, wait_for
    from launcher.submission.resubmit import Again, fork, resubmit
    from launcher.submission.sweeps.points import single

    if args := script_args():
        overrides = (*overrides, f"args={json.dumps(args)}")
    how = Again(
        overrides=overrides, step=_step(from_), unsafe_load=unsafe_load, fresh_code=fresh_code, backend=backend,
        argv=tuple(sys.argv), trusted=vouched(),
    )  # fmt: skip
    if failed:
        if fork_name is not None:
            raise click.UsageError("Use either --failed or --fork: --failed continues points, --fork makes a new run.")
        _failed(run, how, wait)
        return
    paths = single(run)
    submitted = resubmit(paths, how) if fork_name is None else fork(paths, fork_name, how)
    print_submitted(submitted)
    if wait:
        wait_for(submitted)


def _step(text: str) -> int | None:
    if text == "latest":
        return None
    if whole_number(text) is None:
        raise click.BadParameter(f"{text!r} is not a step. Write latest or a step number.", param_hint="--from")
    return whole_number(text)


def _failed(run: str, how: Again, wait: bool) -> None:
    """Resubmit every point of the sweep that failed, or whose processes died without an outcome, as one array."""
    from launcher.cli._follow_run import follow_points
    from launcher.cli._submitting import print_warnings
    from launcher.run import index
    from launcher.submission.sweeps.points import own_points_of
    from launcher.submission.sweeps.resubmit_points import failed_of, resubmit_points

    sweep = index.resolve(run)
    if not index.is_sweep(sweep):
        raise StateError(f"{sweep.name} is not a sweep; launcher resubmit {sweep.name} continues it")
    chosen = failed_of(own_points_of(sweep))
    if not chosen:
        click.echo(f"{sweep.name} has no failed points")
        return
    for array in resubmit_points(sweep, chosen, how):
        count = len(array.runs)
        what = f"{count} points, SLURM array {array.job_id}" if count > 1 else f"SLURM job {array.job_id}"
        click.echo(f"{sweep.name} resubmitted: {what}")
        print_warnings(array.plan.warnings)
        for name in array.runs:
            click.echo(f"  point    {name}")
    if wait:
        follow_points(sweep.name, chosen)
