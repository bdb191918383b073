"""List runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from launcher.cli._options import json_option

if TYPE_CHECKING:
    from launcher.report.text.listing import ListingRow


@click.command()
@click.option("--sweep", metavar="ID", help="List the points of one sweep, sorted by --metric.")
@click.option("--metric", metavar="NAME", help="Sort points by this metric. Default: the loss, else the first metric.")
@click.option("--highest", is_flag=True, help="Put the highest metric first. Default for names like accuracy.")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(["pending", "running", "completed", "failed", "cancelled"]),
    help="List only runs in this state. May be repeated.",
)  # fmt: skip
@click.option(
    "-n", "--number", type=click.IntRange(min=1), default=30, show_default=True, help="Print at most this many lines."
)
@click.option("-a", "--all", "everything", is_flag=True, help="Print all lines.")
@json_option(help="Print a JSON list of every run.")
def command(
    sweep: str | None, metric: str | None, highest: bool, states: tuple[str, ...], number: int, everything: bool, as_json: bool,
) -> None:  # fmt: skip
    """List runs, newest first; a sweep is one line.

    Runs that belong to others, or that others can write, are marked.
    """
    from launcher.report.formats import json_lines
    from launcher.report.model.runs import all_runs
    from launcher.report.text.listing import group_sweeps, grouped_rows, rows

    now, most = time.time(), None if everything else number
    if sweep is None and not as_json and not states:
        groups = group_sweeps(all_runs(foreign=True))
        _print([_cells(line, now) for line in grouped_rows(groups[:most], now)], len(groups[:most]), len(groups))
        return
    found = rows(all_runs(foreign=True), now) if sweep is None else _points(sweep, now, metric, highest)
    found = [r for r in found if not states or r.state in states]
    if as_json:
        click.echo(json_lines(map(vars, found)))
        return
    _print([_sweep_cells(r) if r.sweep else _cells([r], now) for r in found[:most]], len(found[:most]), len(found))


def _points(sweep: str, now: float, metric: str | None, highest: bool) -> list[ListingRow]:
    from launcher.errors import RunNotFoundError
    from launcher.report.model.runs import known_points
    from launcher.report.text.listing import best_metric, rows, sort_by_metric
    from launcher.run.index import is_sweep, resolve
    from launcher.run.units import short_list

    if not is_sweep(folder := resolve(sweep)):
        raise RunNotFoundError(f"{folder.name} is no sweep; launcher ls lists the sweeps")
    points = rows(known_points(folder), now)
    metrics = sorted({name for point in points for name in point.metrics})
    if metric is not None and metrics and metric not in metrics:
        raise click.BadParameter(
            f"no point has {metric!r}; they have {short_list(metrics, 12)}.", param_hint="'--metric'"
        )
    name = metric or best_metric(points)
    return sort_by_metric(points, name, descending=highest or "acc" in name) if name else points


def _state_cell(state: str) -> str:
    from launcher.report.text.status import colour

    return click.style(state, fg=colour(state))


def _cells(line: list[ListingRow], now: float) -> list[str]:
    """Return one line of the list: a run, or all points of a sweep."""
    from launcher.report import formats
    from launcher.report.text.listing import main_metric, sweep_line

    item = line[0]
    mark = f" ({item.mark})" if item.mark else ""
    if item.sweep is not None:
        state, words = sweep_line(line)
        when = max((p.when for p in line if p.when), default=None)
        return [f"{item.sweep} (sweep){mark}", _state_cell(state), words, "", formats.time_of_day(when, now)]
    step = formats.count(item.step) + (f"/{formats.count(item.total_steps)}" if item.total_steps else "")
    speed = formats.rate(item.rate) if item.state == "running" else ""
    words = "  ".join(w for w in (step, speed, main_metric(item.metrics)) if w)
    if item.state == "running" and item.eta_s is not None:
        return [f"{item.run}{mark}", _state_cell(item.state), words, f"done in {formats.duration(item.eta_s)}", ""]
    reason = formats.clean(item.reason, 40) if item.state != "completed" else ""
    return [f"{item.run}{mark}", _state_cell(item.state), words, reason, formats.time_of_day(item.when, now)]


def _sweep_cells(row: ListingRow) -> list[str]:
    from launcher.report import formats

    metrics = "  ".join(f"{formats.clean(k, 16)} {formats.number(v)}" for k, v in list(row.metrics.items())[:4])
    return [row.run, _state_cell(row.state), " ".join(formats.clean(o, 40) for o in row.overrides), metrics]


def _print(table: list[list[str]], shown: int, count: int) -> None:
    from launcher.cli._output import print_table

    if not table:
        click.echo("no runs found; launcher submit job.yaml starts one")
        return
    print_table(table)
    if count > shown:
        click.echo(f"{count - shown} more; --all lists them")
