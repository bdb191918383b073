"""List runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from launcher.report.listing import Row


@click.command()
@click.option("--sweep", metavar="ID", help="The points of one sweep, sorted by --metric.")
@click.option("--metric", metavar="NAME", help="Metric to sort a sweep's points by. Default: the loss, else the first.")
@click.option("--highest", is_flag=True, help="Highest metric first. Default: for names like accuracy.")
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only runs in this state; may be repeated.")
@click.option("-n", "--number", type=click.IntRange(min=1), default=30, show_default=True, help="Lines at most.")
@click.option("-a", "--all", "everything", is_flag=True, help="No limit.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list, every run in it.")
def command(
    sweep: str | None,
    metric: str | None,
    highest: bool,
    states: tuple[str, ...],
    number: int,
    everything: bool,
    as_json: bool,
) -> None:
    """List runs, newest first; a sweep is one line."""
    import dataclasses
    import json
    import time

    from launcher.report.listing import group_sweeps, rows
    from launcher.report.runs import all_runs

    now = time.time()
    found = rows(all_runs(), now)
    if states:
        found = [r for r in found if r.state in states]
    if sweep is not None:
        found = _points(found, sweep, metric, highest)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(r) for r in found], indent=1))
        return
    table = [_sweep_cells(r) for r in found] if sweep is not None else [_cells(g, now) for g in group_sweeps(found)]
    if not table:
        click.echo("no runs" if states or sweep else "no runs yet; launcher submit job.yaml starts one")
        return
    shown = table if everything else table[:number]
    _print(shown)
    if len(table) > len(shown):
        click.echo(f"{len(table) - len(shown)} more: launcher ls --all")


def _points(found: list[Row], sweep: str, metric: str | None, highest: bool) -> list[Row]:
    from launcher.errors import RunNotFoundError
    from launcher.report.listing import best_metric, sort_by_metric

    points = [r for r in found if r.sweep is not None and (r.sweep == sweep or r.sweep.endswith(sweep))]
    if not points:
        raise RunNotFoundError(f"no sweep answers to {sweep!r}; launcher ls shows what there is")
    name = metric or best_metric(points)
    return sort_by_metric(points, name, descending=highest or "acc" in name) if name else points


def _state_cell(state: str) -> str:
    from launcher.report.status import colour

    return click.style(state, fg=colour(state))


def _cells(item: Row | list[Row], now: float) -> list[str]:
    from launcher.report import text
    from launcher.report.listing import main_metric, sweep_line

    if isinstance(item, list):
        state, words = sweep_line(item)
        when = max((p.when for p in item if p.when), default=None)
        return [f"{item[0].sweep} (sweep)", _state_cell(state), words, "", text.clock(when, now)]
    step = text.count(item.step) + (f"/{text.count(item.total_steps)}" if item.total_steps else "")
    speed = text.rate(item.rate) if item.state == "running" else ""
    words = "  ".join(w for w in (step, speed, main_metric(item.metrics)) if w)
    if item.state == "running" and item.eta_s is not None:
        return [item.run, _state_cell(item.state), words, f"done in {text.duration(item.eta_s)}", ""]
    reason = text.clean(item.reason, 40) if item.state != "completed" else ""
    return [item.run, _state_cell(item.state), words, reason, text.clock(item.when, now)]


def _sweep_cells(row: Row) -> list[str]:
    from launcher.report import text

    metrics = "  ".join(f"{text.clean(k, 16)} {text.number(v)}" for k, v in list(row.metrics.items())[:4])
    return [row.run, _state_cell(row.state), " ".join(text.clean(o, 40) for o in row.overrides), metrics]


def _print(table: list[list[str]]) -> None:
    widths = [max(len(click.unstyle(row[i])) for row in table) for i in range(len(table[0]))]
    for row in table:
        cells = (cell + " " * (w - len(click.unstyle(cell))) for cell, w in zip(row, widths, strict=True))
        click.echo("  ".join(c for c, w in zip(cells, widths, strict=True) if w).rstrip())
