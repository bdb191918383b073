"""Print what would be submitted, without submitting it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from launcher.cli._options import JobCommand, backend_option, json_option, load_job_words, sweep_option
from launcher.redact import redact
from launcher.run.units import whole_number

if TYPE_CHECKING:
    from launcher.config.document.schema import Resources
    from launcher.config.load.load import LoadedJob
    from launcher.submission.facts.facts import BackendName, Facts


@click.command(cls=JobCommand)
@json_option(help="Print one JSON object.")
@click.option("--estimate", is_flag=True, help="Ask SLURM when the job would start (sbatch --test-only).")
@click.option("--nodes", "nodes", metavar="1,2,4", help="Node counts to estimate. Default: the job's own.")
@click.option("--partitions", metavar="A,B", help="Partitions to estimate. Default: the job's own.")
@sweep_option
@backend_option
def command(
    words: tuple[str, ...], backend: BackendName, sweep: tuple[str, ...], as_json: bool, estimate: bool,
    nodes: str | None, partitions: str | None,
) -> None:  # fmt: skip
    """Print exactly what would be submitted: a summary, then the sbatch script. Nothing is submitted.

    JOB is a YAML file or a .py file. KEY=VALUE overrides a key of the job, as in resources.nodes=2. SLURM is not needed.
    """
    from launcher.cli._output import print_json
    from launcher.submission.facts.gather import gather_facts
    from launcher.submission.plan.plan import plan

    if (nodes or partitions) and not estimate:
        raise click.UsageError(
            "--nodes and --partitions belong to --estimate. To change the job write resources.nodes=2."
        )
    loaded = load_job_words(words, sweep)
    if estimate:
        from launcher.cli._estimate import print_estimates

        named = [p for p in (partitions or "").split(",") if p]
        print_estimates(loaded, _counts(nodes) or _range(loaded.job.resources), named, as_json)
        return
    facts = gather_facts(loaded, backend=backend, for_reading=True).for_reading()
    if loaded.job.sweep:
        _sweep(loaded, facts, as_json)
        return
    made = plan(loaded, facts)
    if as_json:
        print_json(made.as_dict())
    else:
        _show(made.summary, lambda: made.sbatch)  # submitit, which writes the script, takes a moment to import


_MOST_ROWS = 8
"""Node counts of a range that are estimated, at most, beside the first."""


def _counts(text: str | None) -> list[int]:
    words = [w.strip() for w in (text or "").split(",") if w.strip()]
    counts = [whole_number(w) or 0 for w in words]
    if not all(counts):
        raise click.BadParameter(f"{text!r} is not a list of node counts such as 1,2,4.", param_hint="--nodes")
    return counts


def _range(wanted: Resources) -> list[int]:
    """Return the node counts of the job, a few where its range is wide."""
    least, most = wanted.least_nodes, wanted.most_nodes
    return sorted({least + (most - least) * part // _MOST_ROWS for part in range(_MOST_ROWS + 1)})


def _show(lines: Sequence[str], render: Callable[[], str]) -> None:
    click.echo("\n".join(lines))
    if script := render():
        click.echo("sbatch script, exactly as submitted:")
        click.echo(redact(script))


def _sweep(loaded: LoadedJob, facts: Facts, as_json: bool) -> None:
    """Print the first point's plan, the points, and the array's script."""
    from launcher.cli._output import print_json
    from launcher.submission.sweeps.submit_sweep import plan_points

    chunks = plan_points(loaded, facts)
    first, count = chunks[0][0], sum(len(c) for c in chunks)
    scripts = [chunk[0].plan.array_script(len(chunk)) for chunk in chunks]
    if as_json:
        points = [{"run": p.plan.spec.id, "overrides": p.overrides} for chunk in chunks for p in chunk]
        print_json({**first.plan.as_dict(), "sbatch": list(map(redact, scripts)), "points": points})
        return
    at_once = first.plan.parameters["array_parallelism"] * len(chunks)
    hours = f"{first.plan.gpu_hours * count:,.0f} {'GPU' if first.plan.spec.gpus_per_node else 'CPU'}-h"
    arrays = f" in {len(chunks)} arrays" if len(chunks) > 1 else ""
    lines = [f"  sweep    {count} points{arrays}, {min(at_once, count)} at once, {hours} for one attempt of each:"]
    lines += [f"           {p.plan.spec.id}" for p in chunks[0][:3]]
    lines += [f"           and {count - 3} more"] if count > 3 else []
    _show([*first.plan.summary, *lines], lambda: "\n".join(scripts))
