"""Print when a job would start and finish, by node count and partition: `plan --estimate`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace

import click

from launcher.cli._output import print_json
from launcher.config.load.load import LoadedJob
from launcher.errors import ConfigError
from launcher.report.formats import duration
from launcher.submission.facts.facts import Facts
from launcher.submission.facts.gather import gather_facts
from launcher.submission.plan.estimate import Estimate, Speed, ask_start, measured_speeds, nearest_speed, order
from launcher.submission.plan.plan import plan


def print_estimates(loaded: LoadedJob, nodes: Sequence[int], partitions: Sequence[str], as_json: bool) -> None:
    """Ask SLURM about every combination and print them, the first to finish first."""
    speeds = measured_speeds(loaded.name)
    found = []
    for partition in partitions or [loaded.job.slurm.partition or ""]:
        job = replace(loaded.job, slurm=replace(loaded.job.slurm, partition=partition or None), sweep={}, after=None)
        there = replace(loaded, job=job)
        facts = gather_facts(there, backend="slurm", for_reading=True)
        found += [_one(there, facts, n, speeds) for n in nodes]
    found = order(found)
    if as_json:
        print_json([{**asdict(e), "end_t": e.end_t if e.run_s is not None else None} for e in found])
        return
    click.echo(f"{'partition':<14} {'nodes':>5} {'ranks':>5}  {'starts':<12} {'runs':<10} finishes")
    for e in found:
        click.echo(_row(e))
    used = sorted({e.speed_of for e in found if e.speed_of})
    if not used:
        click.echo(f"no run of {loaded.name} has measured a speed yet, so only the start is estimated")
        return
    scaled = "; ~ assumes perfect scaling from another number of ranks" if any(e.scaled for e in found) else ""
    click.echo(f"speed from {', '.join(used)}{scaled}")


def _one(loaded: LoadedJob, facts: Facts, nodes: int, speeds: Sequence[Speed]) -> Estimate:
    changed = replace(loaded, job=replace(loaded.job, resources=replace(loaded.job.resources, nodes=nodes)))
    partition = loaded.job.slurm.partition or "default"
    try:
        made = plan(changed, facts)
    except ConfigError as error:
        return Estimate(partition, nodes, 0, None, str(error), None)
    start, why = ask_start(made)
    ranks = made.spec.world_size
    speed = nearest_speed(speeds, ranks)
    if speed is None:
        return Estimate(partition, nodes, ranks, start, why, None)
    return Estimate(partition, nodes, ranks, start, why, speed.seconds(ranks), speed.run_id, speed.ranks != ranks)


def _row(e: Estimate) -> str:
    head = f"{e.partition:<14} {e.nodes:>5} {e.ranks or '':>5}"
    if e.start_t is None or e.end_t is None:
        return f"{head}  never: {e.why}"
    wait = max(0.0, e.start_t - time.time())
    runs, ends = "?", "?"
    if e.run_s is not None:
        runs = f"{'~' if e.scaled else ''}{duration(e.run_s)}"
        ends = time.strftime("%d %b %H:%M", time.localtime(e.end_t))
    return f"{head}  {'now' if wait < 5 else 'in ' + duration(wait):<12} {runs:<10} {ends}"
