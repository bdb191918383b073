"""Take an allocation and keep it: `launcher rerun` runs your code there at once, again and again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from launcher.cli._options import JobCommand, backend_option, load_job_words

if TYPE_CHECKING:
    from launcher.submission.facts.facts import BackendName


@click.command(cls=JobCommand)
@backend_option
def command(words: tuple[str, ...], backend: BackendName) -> None:
    """Take an allocation with the resources of JOB, and keep it with torch imported on every node.

    Nothing of JOB runs yet: `launcher rerun HOLD` runs it there. Inside an allocation of yours (salloc) that one is kept.
    The hold ends with `launcher cancel HOLD`, at its time limit, and when nothing ran in it for 30 min
    (restart.idle_timeout_min).
    """
    from launcher.cli._submitting import below_here, print_warnings
    from launcher.submission.liveness import locate
    from launcher.submission.reruns.submit_hold import submit_hold

    loaded = load_job_words(words)
    one = submit_hold(loaded, backend, sys.argv)
    made, run = one.plan, one.plan.spec.id
    if locate(one.paths).in_foreign_job:
        click.echo(f"{run} keeps the nodes of SLURM job {one.job_id}, which stays yours")
    else:
        where = f"SLURM job {one.job_id}, pending" if made.backend == "slurm" else "on this machine"
        click.echo(f"{run} submitted: {where}")
    ignored = () if loaded.job.after is None else ("after: a hold waits for no run, and neither do its reruns",)
    print_warnings([*made.warnings, *ignored])
    click.echo(
        f"  run code launcher rerun {run}\n  end      launcher cancel {run}\n  folder   {below_here(made.run_dir)}"
    )
