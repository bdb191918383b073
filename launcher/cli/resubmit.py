"""Continue a run, from its latest or another checkpoint; resources may change."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

import click

from launcher.cli._options import complete_run

if TYPE_CHECKING:
    from launcher.run.paths import RunPaths
    from launcher.submission.again import Again


@click.command()
@click.argument("run", shell_complete=complete_run)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--from", "from_", default="latest", metavar="latest|STEP", show_default=True, help="The checkpoint.")
@click.option("--fork", "fork_name", metavar="NAME", help="A new run of that name, beginning from the checkpoint.")
@click.option("--failed", is_flag=True, help="RUN is a sweep: all its points that failed.")
@click.option("--code", "fresh_code", is_flag=True, help="Copy today's code; else the run keeps its own copy.")
@click.option("--backend", type=click.Choice(["auto", "slurm", "local"]), help="Where; else where it was.")
@click.option("--wait", is_flag=True, help="Follow it to its end; the exit code tells how it ended.")
def command(
    run: str,
    overrides: tuple[str, ...],
    from_: str,
    fork_name: str | None,
    failed: bool,
    fresh_code: bool,
    backend: Literal["auto", "slurm", "local"] | None,
    wait: bool,
) -> None:
    """Continue RUN as a new attempt of itself; KEY=VALUE changes its job (fewer nodes, a longer limit, more epochs)."""
    from launcher.cli.submit import say, wait_for
    from launcher.submission import again
    from launcher.submission.points import single

    how = again.Again(
        overrides=overrides, step=_step(from_), fresh_code=fresh_code, backend=backend, argv=tuple(sys.argv)
    )
    if failed:
        _failed(run, how)
        return
    paths = single(run)
    handed = again.fork(paths, fork_name, how) if fork_name else again.resubmit(paths, how)
    say(handed)
    if wait:
        wait_for(handed)


def _step(text: str) -> int | None:
    if text == "latest":
        return None
    if not text.isdigit():
        raise click.BadParameter(f"{text!r} is neither latest nor a step.", param_hint="--from")
    return int(text)


def _failed(run: str, how: Again) -> None:
    """Every point of the sweep that failed, or whose processes died without an outcome."""
    from launcher.submission import again
    from launcher.submission.points import runs_of

    chosen = [paths for paths in runs_of(run) if _has_failed(paths)]
    for paths in chosen:
        handed = again.resubmit(paths, how)
        click.echo(f"{paths.id} submitted again: {handed.job_id}")
    if not chosen:
        click.echo("no point of it has failed")


def _has_failed(paths: RunPaths) -> bool:
    from launcher.run.state import read_outcome
    from launcher.submission.where import locate

    outcome = read_outcome(paths.outcome)
    if outcome is not None:
        return outcome.get("state") == "failed"
    return paths.submission.exists() and not locate(paths).alive(fresh=True)
