"""Submit a job to SLURM, or to this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from launcher.cli._options import JobCommand, backend_option, job_arguments, load, sweep_option

if TYPE_CHECKING:
    from launcher.submission.submit import Submitted
    from launcher.submission.sweeps.submit_sweep import SubmittedSweep


@click.command(cls=JobCommand)
@click.option("--wait", is_flag=True, help="Follow it to its end; the exit code tells how it ended.")
@sweep_option
@backend_option
@job_arguments
def command(
    words: tuple[str, ...],
    module: str | None,
    backend: Literal["auto", "slurm", "local"],
    sweep: tuple[str, ...],
    wait: bool,
) -> None:
    """Submit a job.

    JOB is a YAML file or a .py file; KEY=VALUE overrides keys of the job (resources.nodes=2); what follows -- goes to
    the script. `JOB then JOB2` submits JOB2 to start when JOB has completed.
    """
    from launcher.cli._submitting import chained, submit_job, submit_sweep
    from launcher.run.after import Predecessor

    parts = chained(words)
    handed: list[Submitted] = []
    for part in parts:
        loaded = load(part, module, sweep)
        if loaded.job.sweep:
            if len(parts) > 1:
                raise click.UsageError("A sweep cannot stand beside 'then'.")
            _sweep(submit_sweep(loaded, backend), wait)
            return
        before = handed[-1].plan if handed else None
        job_id = handed[-1].job_id if before and before.backend == "slurm" else ""
        one = submit_job(loaded, backend, [Predecessor("ok", before.run_dir, job_id)] if before else [])
        say(one)
        handed.append(one)
    if wait:
        wait_for(handed[-1])


def say(one: Submitted) -> None:
    """What a user wants to know now."""
    from launcher.run.index import job_name

    spec, plan = one.plan.spec, one.plan
    if plan.backend == "slurm":
        where = f"SLURM job {one.job_id}, pending"
        also = f"     (scancel {one.job_id} works too)"
    else:
        where = f"running on this machine, {'GPUs' if spec.gpus_per_node else 'CPUs'} (no SLURM asked)"
        also = ""
    short = spec.id[len(job_name(spec.id)) + 11 :] or spec.id
    click.echo(f"{spec.id} submitted: {where}")
    for warning in plan.warnings:
        click.echo(f"  warning  {warning}")
    click.echo(f"  follow   launcher logs {short} -f")
    click.echo(f"  stop     launcher cancel {short} --save{also}")
    click.echo(f"  run      {shown(plan.run_dir)}")


def _sweep(one: SubmittedSweep, wait: bool) -> None:
    from launcher.run.index import job_name

    name = one.root.name
    short = name[len(job_name(name)) + 11 :] or name
    jobs = ", ".join(one.arrays)
    click.echo(f"{name} submitted: {len(one.points)} points, SLURM array {jobs}")
    for warning in one.points[0].plan.warnings:
        click.echo(f"  warning  {warning}")
    click.echo(f"  follow   launcher ls --sweep {short}")
    click.echo(f"  stop     launcher cancel {short}     (scancel {' '.join(one.arrays)} works too)")
    click.echo(f"  run      {shown(str(one.root))}")
    if wait:
        from launcher.cli._follow import follow_points
        from launcher.submission.sweeps.points import points_of

        follow_points(name, points_of(one.root))


def shown(path: str) -> str:
    """``path`` relative to the working directory where it lies below it."""
    import os

    here = os.getcwd() + os.sep
    return path[len(here) :] if path.startswith(here) else path


def wait_for(one: Submitted) -> None:
    """Follow to the end; Ctrl-C stops the following, not the run."""
    from launcher.cli._follow import finish, follow
    from launcher.submission.liveness import locate

    where = locate(one.paths)
    try:
        outcome = follow(one.paths, where.alive)
    except KeyboardInterrupt:
        click.echo(
            f"\nno longer waiting; {one.plan.spec.id} goes on. launcher cancel {one.plan.spec.id} stops it", err=True
        )
        raise
    finish(one.paths, outcome)
