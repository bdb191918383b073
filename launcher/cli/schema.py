"""Print the JSON Schema of job files, for editors."""

from __future__ import annotations

from pathlib import Path

import click

import launcher


@click.command()
def command() -> None:
    """Print the JSON Schema of job files, for editors.

    Write it to a file: launcher schema > job.schema.json. Then make "# yaml-language-server: $schema=job.schema.json" the
    first line of a job file.
    """
    schema = Path(launcher.__file__).with_name("config") / "job.schema.json"  # made by docs/generate.py
    click.echo(schema.read_text(encoding="utf-8"), nl=False)
