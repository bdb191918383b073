"""`plan --estimate`: a table of when the job would start and finish, by node count and partition."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from launcher.config.load import LoadedJob
    from launcher.submission.estimate import Estimate, Speed

__all__ = ["show"]


def show(loaded: LoadedJob, nodes: Sequence[int], partitions: Sequence[str]) -> None:
    """Ask SLURM for every combination and print which finishes first."""
    from launcher.submission.estimate import measured, order

    speed = measured(loaded.name)
    found = [_one(loaded, n, p, speed) for p in partitions or [loaded.job.slurm.partition or ""] for n in nodes]
    click.echo(f"{'partition':<14} {'nodes':>5} {'ranks':>5}  {'starts':<12} {'runs':<10} finishes")
    for e in order(found):
        click.echo(_row(e))
    if speed is None:
        click.echo(f"no run of {loaded.name} has measured a speed yet: by start alone")
    else:
        click.echo(
            f"speed from {speed.run_id} ({speed.steps_per_s:.3g} steps/s on {speed.ranks} ranks), perfect scaling assumed"
        )


def _one(loaded: LoadedJob, nodes: int, partition: str, speed: Speed | None) -> Estimate:
    from launcher.errors import ConfigError
    from launcher.submission.estimate import Estimate, ask_start
    from launcher.submission.gather import gather
    from launcher.submission.plan import plan

    job = replace(loaded.job, resources=replace(loaded.job.resources, nodes=nodes))
    job = replace(job, slurm=replace(job.slurm, partition=partition or None))
    changed = replace(loaded, job=job)
    try:
        made = plan(changed, gather(changed, backend="slurm"))
    except ConfigError as error:
        return Estimate(partition or "default", nodes, 0, None, str(error), None)
    start, why = ask_start(made)
    ranks = made.spec.world_size
    return Estimate(partition or "default", nodes, ranks, start, why, speed.seconds(ranks) if speed else None)


def _row(e: Estimate) -> str:
    from launcher.report.text import duration

    head = f"{e.partition:<14} {e.nodes:>5} {e.ranks or '':>5}"
    if e.start_t is None or e.end_t is None:
        return f"{head}  never: {e.why}"
    wait = max(0.0, e.start_t - time.time())
    runs = duration(e.run_s) if e.run_s is not None else "?"
    ends = time.strftime("%d %b %H:%M", time.localtime(e.end_t)) if e.run_s is not None else "?"
    return f"{head}  {'now' if wait < 5 else 'in ' + duration(wait):<12} {runs:<10} {ends}"
