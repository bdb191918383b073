"""Submit a job to SLURM or to this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from launcher.cli._options import JobCommand, backend_option, load_job_words, sweep_option, wait_option

if TYPE_CHECKING:
    from launcher.submission.facts.facts import BackendName


@click.command(cls=JobCommand)
@wait_option
@sweep_option
@backend_option
def command(words: tuple[str, ...], backend: BackendName, sweep: tuple[str, ...], wait: bool) -> None:
    """Submit a job to SLURM or to this machine.

    JOB is a YAML file or a .py file. KEY=VALUE overrides a key of the job, as in resources.nodes=2. Words after --
    replace `args`. `JOB then JOB2` submits both; JOB2 starts when JOB has completed. Words after -- then replace the args
    of JOB2.
    """
    from dataclasses import replace

    from launcher.cli._follow_run import follow_points
    from launcher.cli._submitting import (
        plan_job,
        planning_facts,
        print_submitted,
        print_sweep,
        submit_job,
        submit_sweep,
        wait_for,
    )
    from launcher.run.after import Predecessor

    *before, last = _chained(words)
    jobs = [*(load_job_words(part, sweep, script_args=[]) for part in before), load_job_words(last, sweep)]
    if before:
        if any(loaded.job.sweep for loaded in jobs):
            raise click.UsageError("'then' cannot join a sweep. Submit the sweep by itself.")
    elif jobs[0].job.sweep:
        points = submit_sweep(jobs[0], backend)
        print_sweep(points)
        if wait:
            from launcher.submission.sweeps.points import points_of

            follow_points(points.root.name, points_of(points.root))
        return
    facts = [planning_facts(loaded, backend) for loaded in jobs]
    for loaded, known in zip(jobs[1:], facts[1:], strict=True):
        plan_job(loaded, known)  # what is wrong with a later one is said before the first one is queued
    after: list[Predecessor] = []
    for loaded, known in zip(jobs, facts, strict=True):
        one = submit_job(loaded, replace(known, after=(*after, *known.after)))
        print_submitted(one)
        after = [Predecessor("ok", one.plan.run_dir, one.job_id if one.plan.backend == "slurm" else "")]
    if wait:
        wait_for(one)


def _chained(words: Sequence[str]) -> list[list[str]]:
    """Return the jobs of ``a.yaml then b.yaml``, each with its own overrides."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == "then":
            parts.append([])
        else:
            parts[-1].append(word)
    if len(parts) > 1 and not all(parts):
        raise click.UsageError("'then' needs a job on both sides, as in: launcher submit a.yaml then b.yaml")
    return parts
