"""Rehearse a job on this machine, then drill a resume."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from launcher.cli._options import JobCommand, job_arguments, load

if TYPE_CHECKING:
    from launcher.submission.rehearsal import Rehearsal


@click.command(cls=JobCommand)
@click.option("--steps", type=click.IntRange(min=3), default=20, show_default=True, help="Optimizer steps to rehearse.")
@click.option("--seed", type=int, help="Seed of the drill: which rank is killed, and when.")
@click.option("--keep", is_flag=True, help="Keep the rehearsal's runs.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@job_arguments
def command(
    words: tuple[str, ...], module: str | None, steps: int, seed: int | None, keep: bool, as_json: bool
) -> None:
    """Rehearse JOB here: every node simulated, workers real; then kill a rank, resume, and compare the ends.

    Uses this machine's GPUs, or its CPUs where there are too few. Exit code 10 when the job cannot resume exactly,
    naming the part of its state that differs.
    """
    import os
    import shutil
    import tempfile
    from dataclasses import asdict, replace

    from launcher.errors import LauncherError
    from launcher.submission.gather import gather
    from launcher.submission.rehearsal import rehearse, verdict

    loaded = load(words, module)
    facts = gather(loaded, backend="local")
    place = tempfile.mkdtemp(prefix="launcher-dry-run-")
    if not keep:
        facts = replace(facts, runs_dir=place, runs_dir_shown=place)
    tell = (lambda _: None) if as_json else click.echo
    failed = False
    try:
        found = rehearse(loaded, facts, steps=steps, seed=seed, tell=tell)
    except LauncherError:
        failed = True  # its logs are what the user wants to see now
        raise
    finally:
        if not failed or not os.listdir(place):
            shutil.rmtree(place, ignore_errors=True)
    if as_json:
        click.echo(json.dumps({**asdict(found), "projected_s": found.projected_s}, indent=1))
    else:
        for line in describe(found, int(loaded.job.resources.timeout_min)):
            click.echo(line)
    verdict(found)


def describe(found: Rehearsal, timeout_min: int) -> list[str]:
    """What a user wants to know before asking for nodes."""
    from launcher.report.text import duration
    from launcher.submission.describe import size

    first = found.first
    lines = [f"  note     {note}" for note in found.notes] + [f"  warning  {text}" for text in first.warnings]
    if first.step_time_s:
        lines.append(f"  step     {first.step_time_s * 1000:.1f} ms (median of {first.steps})")
    if first.rank_bytes:
        lines.append(f"  memory   {first.rank_bytes / 2**20:,.0f} MiB at most in one rank")
    if first.checkpoint_bytes:
        blocked = f", training waits {first.save_blocked_s * 1000:.1f} ms" if first.save_blocked_s is not None else ""
        lines.append(f"  save     {size(first.checkpoint_bytes)} in {first.save_s:.2f} s{blocked}")
    if found.projected_s is not None:
        attempts = int(found.projected_s // (timeout_min * 60)) + 1
        fits = "fits one attempt" if attempts == 1 else f"takes {attempts} attempts"
        lines.append(
            f"  wall     {duration(found.projected_s)} at this machine's pace; with a limit of {timeout_min} min it {fits}"
        )
    if found.second is not None and found.killed is not None and not found.differs:
        rank, step = found.killed
        lines.append(
            f"  drill    passed: rank {rank} killed at step {step}, resumed from {found.resumed_from}, same end"
        )
    return lines
