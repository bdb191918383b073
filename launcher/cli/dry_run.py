"""Rehearse a job, then test that it resumes exactly."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from launcher.cli._options import JobCommand, json_option, load_job_words
from launcher.errors import DrillError, LauncherError

if TYPE_CHECKING:
    from launcher.config.load.load import LoadedJob
    from launcher.submission.rehearsal.rehearse import Rehearsal
    from launcher.submission.rehearsal.stages import Stage


@click.command(cls=JobCommand)
@click.option("--steps", type=click.IntRange(min=3), default=20, show_default=True, help="Optimizer steps to run.")
@click.option("--seed", type=int, help="Seed that chooses which rank is killed, and when.")
@click.option("--slurm", is_flag=True, help="Use real nodes: the allocation around this shell, else a new one.")
@click.option("--keep", is_flag=True, help="Keep the runs of the rehearsal.")
@json_option(help="Print one JSON object.")
def command(words: tuple[str, ...], steps: int, seed: int | None, slurm: bool, keep: bool, as_json: bool) -> None:
    """Rehearse JOB on this machine: run some steps, kill a rank, resume, and compare the final states.

    Nodes are simulated, workers are real. They use this machine's GPUs, or its CPUs where it has too few GPUs.

    With --slurm the nodes are real: those of the allocation around this shell (salloc), else new ones from the site
    profile's debug_partition or the job's partition. The launcher releases new ones at the end.

    Exit code 10: the job cannot resume exactly (the error names the part of its state that differs), or no resume can be
    tested (checkpoint.enabled: false, nothing was saved, or fewer than three steps). A script that reports no steps runs for
    up to a minute and is not tested; a note says so, and the exit code is 0.
    """
    from launcher.cli._output import print_json
    from launcher.run.rehearsals import note_rehearsal
    from launcher.submission.rehearsal.rehearse import check_drill, rehearse

    loaded = load_job_words(words)
    tell = (lambda _: None) if as_json else click.echo
    with _stage(loaded, slurm, keep, tell) as stage:
        found = rehearse(loaded, stage, steps=steps, seed=seed, tell=tell)
    if as_json:
        print_json({**asdict(found), "projected_s": found.projected_s})
    else:
        for line in rehearsal_lines(found, int(loaded.job.resources.timeout_min), real=slurm):
            click.echo(line)
    first = found.first
    rate = 1.0 / first.step_time_s if first.step_time_s else None
    note_rehearsal(  # for `plan --estimate` and `doctor`
        loaded.name, real=slurm, ranks=first.ranks, steps_per_s=rate, total_steps=first.total_steps, save_s=first.save_s
    )
    check_drill(found)


@contextlib.contextmanager
def _stage(loaded: LoadedJob, slurm: bool, keep: bool, tell: Callable[[str], None]) -> Iterator[Stage]:
    """Prepare the stage of the rehearsal: this machine, or nodes of SLURM."""
    from launcher.submission.facts.gather import gather_facts
    from launcher.submission.rehearsal.stages import Stage, on_slurm

    if slurm:
        loaded = _in_its_partition(loaded)
    facts = gather_facts(loaded, backend="slurm" if slurm else "local")
    with contextlib.ExitStack() as stack:
        if not keep:
            # Real nodes see the runs' own file system, and may not see this machine's temporary one.
            place = stack.enter_context(_own_folder(facts.runs_dir if slurm else None))
            facts = replace(facts, runs_dir=place, runs_dir_shown=place)
        stage = stack.enter_context(on_slurm(loaded, facts, tell)) if slurm else Stage(facts, str(os.getpid()))
        yield replace(stage, kept=keep)


@contextlib.contextmanager
def _own_folder(above: str | None) -> Iterator[str]:
    """Make a folder for the rehearsal's runs. It stays when the job fails, because the user then needs its logs."""
    from launcher.submission.folder import make_folder

    with make_folder.writing(Path(above)) if above is not None else contextlib.nullcontext():
        if above is not None:
            os.makedirs(above, exist_ok=True)
        place, stays = tempfile.mkdtemp(prefix="launcher-dry-run-", dir=above), False
    try:
        yield place
    except LauncherError as error:
        stays = not isinstance(error, DrillError)
        raise
    finally:
        if not stays or not os.listdir(place):
            shutil.rmtree(place, ignore_errors=True)
            if above is not None:
                with contextlib.suppress(OSError):
                    os.rmdir(above)  # only where nothing else is in it


def _in_its_partition(loaded: LoadedJob) -> LoadedJob:
    """Return the job with the partition of its rehearsal: the allocation's, the command line's, the profile's, or its own."""
    from launcher.config.document.source import COMMAND_LINE

    origin = loaded.origin.get("slurm.partition")
    said = loaded.job.slurm.partition if origin is not None and origin.source == COMMAND_LINE else None
    partition = os.environ.get("SLURM_JOB_PARTITION") or said or loaded.site.debug_partition
    if not partition:
        return loaded
    return replace(loaded, job=replace(loaded.job, slurm=replace(loaded.job.slurm, partition=partition)))


def rehearsal_lines(found: Rehearsal, timeout_min: int, *, real: bool = False) -> list[str]:
    """Return the lines that show what a rehearsal measured."""
    from launcher.report.formats import duration, step_time
    from launcher.run.units import size

    first = found.first
    lines = [f"  note     {note}" for note in found.notes] + [f"  warning  {text}" for text in first.warnings]
    if real and first.hosts:
        speed = f"; all-reduce {first.bandwidth_gb_s:.2f} GB/s" if first.bandwidth_gb_s is not None else ""
        lines.append(f"  nodes    {', '.join(first.hosts)}: checks passed{speed}")
    if first.step_time_s:
        lines.append(f"  step     {step_time(first.step_time_s)} (median of {first.steps})")
    if first.rank_bytes:
        lines.append(f"  memory   {first.rank_bytes / 2**20:,.0f} MiB at most in one rank")
    if first.checkpoint_bytes:
        blocked = f", training waits {step_time(first.save_blocked_s)}" if first.save_blocked_s is not None else ""
        lines.append(f"  save     {size(first.checkpoint_bytes)} in {first.save_s:.2f} s{blocked}")
    if found.projected_s is not None:
        where = "these nodes'" if real else "this machine's"
        attempts = int(found.projected_s // (timeout_min * 60)) + 1
        fits = "fits one attempt" if attempts == 1 else f"takes {attempts} attempts"
        lines.append(
            f"  wall     {duration(found.projected_s)} at {where} speed; with a limit of {timeout_min} min it {fits}"
        )
    if found.second is not None and found.killed is not None and not found.differs:
        rank, step = found.killed
        lines.append(
            f"  drill    passed: rank {rank} killed at step {step}, resumed from {found.resumed_from}, same final state"
        )
    return lines
