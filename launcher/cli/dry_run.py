"""Rehearse a job on this machine or on real nodes, then drill a resume."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from launcher.cli._options import JobCommand, job_arguments, load

if TYPE_CHECKING:
    from launcher.config.load.load import LoadedJob
    from launcher.submission.rehearsal.rehearse import Rehearsal
    from launcher.submission.rehearsal.stages import Stage


@click.command(cls=JobCommand)
@click.option("--steps", type=click.IntRange(min=3), default=20, show_default=True, help="Optimizer steps to rehearse.")
@click.option("--seed", type=int, help="Seed of the drill: which rank is killed, and when.")
@click.option(
    "--slurm", is_flag=True, help="On real nodes: the allocation you stand in, else one that is taken for it."
)
@click.option("--keep", is_flag=True, help="Keep the rehearsal's runs.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@job_arguments
def command(
    words: tuple[str, ...], module: str | None, steps: int, seed: int | None, slurm: bool, keep: bool, as_json: bool
) -> None:
    """Rehearse JOB here: every node simulated, workers real; then kill a rank, resume, and compare the ends.

    Uses this machine's GPUs, or its CPUs where there are too few. With --slurm the nodes are real: those of the allocation
    around it (salloc), else some of the site profile's debug_partition (else of the job's partition), given back at the end.
    Exit code 10 when the job cannot resume exactly, naming the part of its state that differs, or when no resume can be tried
    (checkpoint.enabled: false, fewer than three steps). A script that reports no steps resumes on its own: a note says so, 0.
    """
    from dataclasses import asdict

    from launcher.submission.rehearsal.rehearse import rehearse, verdict

    loaded = load(words, module)
    tell = (lambda _: None) if as_json else click.echo
    with _stage(loaded, slurm, keep, tell) as stage:
        found = rehearse(loaded, stage, steps=steps, seed=seed, tell=tell)
    if as_json:
        click.echo(json.dumps({**asdict(found), "projected_s": found.projected_s}, indent=1))
    else:
        for line in describe(found, int(loaded.job.resources.timeout_min), real=slurm):
            click.echo(line)
    _remember(loaded, found, real=slurm)
    verdict(found)


def _remember(loaded: LoadedJob, found: Rehearsal, *, real: bool) -> None:
    """For `plan --estimate` and `doctor`."""
    from launcher.run import rehearsals

    first = found.first
    rate = 1.0 / first.step_time_s if first.step_time_s else None
    rehearsals.note(
        loaded.name, real=real, ranks=first.ranks, steps_per_s=rate, total_steps=first.total_steps, save_s=first.save_s
    )


@contextlib.contextmanager
def _stage(loaded: LoadedJob, slurm: bool, keep: bool, tell: Callable[[str], None]) -> Iterator[Stage]:
    """Where it takes place."""
    from dataclasses import replace

    from launcher.submission.facts.gather import gather
    from launcher.submission.rehearsal.stages import LocalStage, on_slurm

    if slurm:
        loaded = _in_its_partition(loaded)
    facts = gather(loaded, backend="slurm" if slurm else "local")
    with contextlib.ExitStack() as stack:
        if not keep:
            # Real nodes see the runs' own file system, and may not see this machine's temporary one.
            place = stack.enter_context(_own_folder(facts.runs_dir if slurm else None))
            facts = replace(facts, runs_dir=place, runs_dir_shown=place)
        if slurm:
            stack.enter_context(_ended_politely())
            yield stack.enter_context(on_slurm(loaded, facts, tell))
        else:
            yield LocalStage(facts)


@contextlib.contextmanager
def _own_folder(above: str | None) -> Iterator[str]:
    """A folder for the rehearsal's runs. It stays when the job fails: its logs are what a user wants to read then."""
    import shutil
    import tempfile

    from launcher.errors import DrillError, LauncherError
    from launcher.run import index

    if above is not None:
        os.makedirs(above, exist_ok=True)
    place, stays = tempfile.mkdtemp(prefix="launcher-dry-run-", dir=above), False
    try:
        yield place
    except LauncherError as error:
        stays = not isinstance(error, DrillError)
        raise
    finally:
        for run_id in os.listdir(place):
            index.unregister(run_id)
        if not stays or not os.listdir(place):
            shutil.rmtree(place, ignore_errors=True)
            if above is not None:
                with contextlib.suppress(OSError):
                    os.rmdir(above)  # only where nothing else is in it


def _in_its_partition(loaded: LoadedJob) -> LoadedJob:
    """The job in the partition it is rehearsed in: the command line's, the allocation's, the profile's, its own."""
    from dataclasses import replace

    from launcher.config.document.source import COMMAND_LINE

    origin = loaded.origin.get("slurm.partition")
    said = loaded.job.slurm.partition if origin is not None and origin.source == COMMAND_LINE else None
    partition = os.environ.get("SLURM_JOB_PARTITION") or said or loaded.site.debug_partition
    if not partition:
        return loaded
    return replace(loaded, job=replace(loaded.job, slurm=replace(loaded.job.slurm, partition=partition)))


@contextlib.contextmanager
def _ended_politely() -> Iterator[None]:
    """TERM and a closed terminal end this command like ^C does: the allocation it took must be given back."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def describe(found: Rehearsal, timeout_min: int, *, real: bool = False) -> list[str]:
    """What a user wants to know before asking for nodes."""
    from launcher.report.formats import duration
    from launcher.run.units import size

    first = found.first
    lines = [f"  note     {note}" for note in found.notes] + [f"  warning  {text}" for text in first.warnings]
    if real and first.hosts:
        speed = f"; all-reduce {first.bandwidth_gb_s:.2f} GB/s" if first.bandwidth_gb_s is not None else ""
        lines.append(f"  nodes    {', '.join(first.hosts)}: checks passed{speed}")
    if first.step_time_s:
        lines.append(f"  step     {first.step_time_s * 1000:.1f} ms (median of {first.steps})")
    if first.rank_bytes:
        lines.append(f"  memory   {first.rank_bytes / 2**20:,.0f} MiB at most in one rank")
    if first.checkpoint_bytes:
        blocked = f", training waits {first.save_blocked_s * 1000:.1f} ms" if first.save_blocked_s is not None else ""
        lines.append(f"  save     {size(first.checkpoint_bytes)} in {first.save_s:.2f} s{blocked}")
    if found.projected_s is not None:
        where = "these nodes'" if real else "this machine's"
        attempts = int(found.projected_s // (timeout_min * 60)) + 1
        fits = "fits one attempt" if attempts == 1 else f"takes {attempts} attempts"
        lines.append(
            f"  wall     {duration(found.projected_s)} at {where} pace; with a limit of {timeout_min} min it {fits}"
        )
    if found.second is not None and found.killed is not None and not found.differs:
        rank, step = found.killed
        lines.append(
            f"  drill    passed: rank {rank} killed at step {step}, resumed from {found.resumed_from}, same end"
        )
    return lines
