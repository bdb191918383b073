"""Print the JSON Schema of job files, for editors."""

from __future__ import annotations

from pathlib import Path

import click

import launcher


@click.command()
def command() -> None:
    """Print the JSON Schema of job files, for editors.

    launcher schema > job.schema.json, and "# yaml-language-server: $schema=job.schema.json" as a job file's first line.
    """
    # Made by docs/generate.py: making it anew takes four times as long.
    click.echo(
        Path(launcher.__file__).with_name("config").joinpath("job.schema.json").read_text(encoding="utf-8"), nl=False
    )
