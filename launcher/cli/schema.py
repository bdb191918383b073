"""Print the JSON Schema of job files, for editors."""

from __future__ import annotations

import json

import click


@click.command()
def command() -> None:
    """Print the JSON Schema of job files, for editors.

    launcher schema > job.schema.json, and "# yaml-language-server: $schema=job.schema.json" as a job file's first line.
    """
    from launcher.config.reference import json_schema

    click.echo(json.dumps(json_schema(), indent=1))
