"""Write a job file, or convert an sbatch script to one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from launcher.errors import ConfigError, StateError

if TYPE_CHECKING:
    from launcher.config.convert.first_job import DefaultPartition
    from launcher.slurm.site import Site


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", default="job.yaml", show_default=True, metavar="PATH", help='File to write; "-" prints.'
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def command(file: Path | None, output: str, force: bool) -> None:
    """Write a job file, or convert an sbatch script to one.

    FILE is an sbatch script that starts torchrun, srun, accelerate or python, or a hydra-submitit config. Comments in the
    job file tell what was not converted. Without FILE, the launcher searches this directory for training code and asks
    SLURM for its partitions.
    """
    from launcher.config.convert import MOST_TEXT, convert
    from launcher.opening import read_start
    from launcher.run.files import write_atomic

    if not output:
        raise ConfigError("-o is empty; write a path, or - to print")
    if output != "-" and not force and os.path.lexists(output):
        raise StateError(f"{output} exists; --force replaces it, -o PATH writes elsewhere, and -o - prints")
    try:
        given = "" if file is None else read_start(file, 4 * MOST_TEXT).decode("utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    text = _first_job() if file is None else convert(given, file.name)
    if output == "-":
        click.echo(text, nl=False)
        return
    try:
        write_atomic(Path(output), text, mode=0o644)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}") from None
    click.echo(f"{output} written; check it, then: launcher plan {output}")


def _first_job() -> str:
    """Return a job file for this directory's code, with a partition where SLURM names one."""
    from launcher.config.convert.first_job import DefaultPartition, find_work, first_job
    from launcher.slurm.site import ask_site, find_slurm

    partition, presence = DefaultPartition(), find_slurm()
    if presence.state != "ready":
        click.echo(presence.reason, err=True)
        source = "no SLURM"
    elif isinstance(site := ask_site(), str):
        click.echo(site, err=True)
        source = "no answer from SLURM"
    else:
        partition, source = default_partition(site), f"SLURM {site.version}".strip()
    return first_job(find_work(Path.cwd()), partition, f"this directory and {source}")


def default_partition(site: Site) -> DefaultPartition:
    """Return the default partition, or the first with GPUs where the default has none."""
    from launcher.config.convert.first_job import DefaultPartition

    ranked = sorted((p for p in site.partitions if p.up), key=lambda p: (p.gpus_per_node == 0, not p.default))
    if not ranked:
        return DefaultPartition()
    chosen, *others = ranked
    return DefaultPartition(
        partition=chosen.name,
        gpus=chosen.gpus_per_node,
        cpus=chosen.cpus_per_node,
        limit_min=int(chosen.max_time_s // 60) if chosen.max_time_s else None,
        account_needed="associations" in site.enforces.lower(),
        others=tuple(
            f"{p.name} ({f'{p.gpus_per_node} GPUs a node' if p.gpus_per_node else 'no GPUs'})" for p in others[:5]
        ),
    )
