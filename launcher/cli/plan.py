"""Print what would be submitted."""

from __future__ import annotations

import json
from typing import Literal

import click

from launcher.cli._options import JobCommand, backend_option, job_arguments, load


@click.command(cls=JobCommand)
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@backend_option
@job_arguments
def command(
    words: tuple[str, ...], module: str | None, backend: Literal["auto", "slurm", "local"], as_json: bool
) -> None:
    """Print exactly what would be submitted: a summary, then the sbatch script.

    JOB is a YAML file or a .py file; KEY=VALUE overrides keys of the job (resources.nodes=2). Touches no cluster.
    """
    from launcher.submission.gather import gather
    from launcher.submission.plan import plan

    loaded = load(words, module)
    made = plan(loaded, gather(loaded, backend=backend))
    if as_json:
        click.echo(json.dumps(made.as_dict(), indent=1))
        return
    for line in made.summary:
        click.echo(line)
    if made.sbatch:
        click.echo("sbatch script, exactly as submitted:")
        click.echo(made.sbatch)
