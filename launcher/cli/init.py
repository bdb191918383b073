"""Write a first job file, or turn an sbatch script into one."""

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
    "-o", "--output", default="job.yaml", show_default=True, metavar="PATH", help='Where to write; "-" prints.'
)
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
def command(file: Path | None, output: str, force: bool) -> None:
    """Write a job file to start from.

    FILE is an sbatch script around torchrun, srun, accelerate or plain python, or a hydra-submitit config; what cannot be
    carried over is said in comments. Without FILE, this directory is searched for training code and SLURM is asked what
    is here.
    """
    from launcher.errors import StateError

    if output != "-" and not force and Path(output).exists():
        raise StateError(f"{output} exists: --force replaces it, -o writes elsewhere, and -o - prints.")
    text = _first() if file is None else _converted(file)
    if output == "-":
        click.echo(text, nl=False)
        return
    _write(Path(output), text)
    click.echo(f"{output} written; look it over, then: launcher plan {output}")


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


def _first() -> str:
    from launcher.config.convert.first_job import find_work, first_job

    place, source = _place()
    return first_job(find_work(Path.cwd()), place, f"this directory and {source}")


def _place() -> tuple[DefaultPartition, str]:
    """What SLURM says is here; this machine alone where there is no SLURM."""
    from launcher.config.convert.first_job import DefaultPartition
    from launcher.slurm.site import ask_site, find_slurm, parse_site

    presence = find_slurm()
    if presence.state != "ready":
        click.echo(presence.reason, err=True)
        return DefaultPartition(), "without SLURM"
    texts = ask_site()
    if isinstance(texts, str):
        click.echo(texts, err=True)
        return DefaultPartition(), "without an answer from SLURM"
    site = parse_site(texts)
    return place_of(site), f"SLURM {site.version}".strip()


def place_of(site: Site) -> DefaultPartition:
    """The default partition, or the first with GPUs where the default has none."""
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
