"""Write a job file, or convert an sbatch script to one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from launcher.config.convert.first_job import DefaultPartition
    from launcher.slurm.site import Partition, Site


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
    from launcher.errors import StateError

    if output != "-" and not force and Path(output).exists():
        raise StateError(f"{output} exists; --force replaces it, -o PATH writes elsewhere, and -o - prints")
    text = _first_job() if file is None else _converted(file)
    if output == "-":
        click.echo(text, nl=False)
        return
    _write(Path(output), text)
    click.echo(f"{output} written; check it, then: launcher plan {output}")


def _write(path: Path, text: str) -> None:
    from launcher.errors import ConfigError
    from launcher.run.files import write_atomic

    try:
        write_atomic(path, text, mode=0o644)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


def _converted(file: Path) -> str:
    from launcher.config.convert import convert
    from launcher.errors import ConfigError

    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    return convert(text, file.name)


def _first_job() -> str:
    from launcher.config.convert.first_job import find_work, first_job

    partition, source = _ask_slurm()
    return first_job(find_work(Path.cwd()), partition, f"this directory and {source}")


def _ask_slurm() -> tuple[DefaultPartition, str]:
    """The partition to use and where it is known from; an empty one where there is no SLURM."""
    from launcher.config.convert.first_job import DefaultPartition
    from launcher.slurm.site import ask_site, find_slurm

    presence = find_slurm()
    if presence.state != "ready":
        click.echo(presence.reason, err=True)
        return DefaultPartition(), "no SLURM"
    site = ask_site()
    if isinstance(site, str):
        click.echo(site, err=True)
        return DefaultPartition(), "no answer from SLURM"
    return default_partition(site), f"SLURM {site.version}".strip()


def default_partition(site: Site) -> DefaultPartition:
    """Return the default partition, or the first with GPUs where the default has none."""
    from launcher.config.convert.first_job import DefaultPartition

    usable = [p for p in site.partitions if p.up]
    if not usable:
        return DefaultPartition()
    ranked = sorted(usable, key=lambda p: (p.gpus_per_node == 0, not p.default))
    chosen = ranked[0]
    return DefaultPartition(
        partition=chosen.name,
        gpus=chosen.gpus_per_node,
        cpus=chosen.cpus_per_node,
        limit_min=int(chosen.max_time_s // 60) if chosen.max_time_s else None,
        account_needed="associations" in site.enforces.lower(),
        others=tuple(_words(p) for p in ranked[1:6]),
    )


def _words(partition: Partition) -> str:
    gpus = f"{partition.gpus_per_node} GPUs a node" if partition.gpus_per_node else "no GPUs"
    return f"{partition.name} ({gpus})"
