"""Submit a job to SLURM or to this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from launcher.cli._options import (
    JobCommand,
    backend_option,
    job_arguments,
    load_job_words,
    sweep_option,
    wait_option,
)  # fmt: skip

if TYPE_CHECKING:
    from launcher.submission.facts.facts import BackendName
    from launcher.submission.submit import Submitted


@click.command(cls=JobCommand)
@wait_option
@sweep_option
@backend_option
@job_arguments
def command(
    words: tuple[str, ...], module: str | None, backend: BackendName, sweep: tuple[str, ...], wait: bool
) -> None:
    """Submit a job to SLURM or to this machine.

    JOB is a YAML file or a .py file. KEY=VALUE overrides a key of the job, as in resources.nodes=2. Words after -- are
    arguments of the script. `JOB then JOB2` submits both; JOB2 starts when JOB has completed.
    """
    from launcher.cli._follow import follow_points
    from launcher.cli._submitting import print_submitted, print_sweep, submit_job, submit_sweep, wait_for
    from launcher.run.after import Predecessor

    parts = _chained(words)
    submitted: list[Submitted] = []
    for part in parts:
        loaded = load_job_words(part, module, sweep)
        if loaded.job.sweep:
            if len(parts) > 1:
                raise click.UsageError("'then' cannot join a sweep. Submit the sweep by itself.")
            points = submit_sweep(loaded, backend)
            print_sweep(points)
            if wait:
                from launcher.submission.sweeps.points import points_of

                follow_points(points.root.name, points_of(points.root))
            return
        before = submitted[-1] if submitted else None
        after = []
        if before is not None:
            job_id = before.job_id if before.plan.backend == "slurm" else ""
            after = [Predecessor("ok", before.plan.run_dir, job_id)]
        submitted.append(submit_job(loaded, backend, after))
        print_submitted(submitted[-1])
    if wait:
        wait_for(submitted[-1])


def _chained(words: Sequence[str]) -> list[list[str]]:
    """The jobs of ``a.yaml then b.yaml``, each with its own overrides."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == "then":
            parts.append([])
        else:
            parts[-1].append(word)
    if len(parts) > 1 and not all(parts):
        raise click.UsageError("'then' needs a job on both sides, as in: launcher submit a.yaml then b.yaml")
    return parts
