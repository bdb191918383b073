"""Show the failures, hangs and slow steps of each host in your runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from launcher.cli._options import json_option

if TYPE_CHECKING:
    from launcher.report.model.host_records import HostRecord


@click.command()
@click.argument("hosts", nargs=-1, metavar="[HOST]...")
@click.option(
    "--runs", "number", type=click.IntRange(min=1), default=200, show_default=True, help="Newest runs to read."
)
@click.option("--suspect", is_flag=True, help="Show only suspect hosts.")
@json_option(help="Print a JSON list.")
def command(hosts: tuple[str, ...], number: int, suspect: bool, as_json: bool) -> None:
    """Show the failures, hangs and slow steps of each HOST in your runs (default: all hosts, the worst first).

    HOST may be a SLURM host list: node[1-4]. The mark ! shows a suspect host: it is slow, or it was lost, hung or failed
    its checks more than once. FAILED counts workers, which may have failed because of their program.
    """
    from launcher.cli._output import NO_RUNS, print_json
    from launcher.hosts import expand_hosts
    from launcher.report.model.host_records import gather, load
    from launcher.report.model.runs import all_runs
    from launcher.run.units import plural

    try:
        wanted = {name for text in hosts for name in expand_hosts(text)}
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="HOST") from None
    known = all_runs()[:number]
    records = [
        r
        for r in gather(load(k.paths) for k in known)
        if (not wanted or r.host in wanted) and (r.suspect or not suspect)
    ]
    if as_json:
        print_json([r.as_json() for r in records])
        return
    if not records:
        what = f"no {'such ' if wanted else ''}{'suspect ' if suspect else ''}host"
        click.echo(f"{what} in your newest {plural(len(known), 'run')}" if known else NO_RUNS)
        return
    _table(records, time.time())


def _table(records: list[HostRecord], now: float) -> None:
    from launcher.cli._output import print_table
    from launcher.report.formats import ago, clean

    head = ("", "HOST", "RUNS", "LOST", "FAILED", "HUNG", "CHECKS", "SLOW", "LATEST")
    rows = [[click.style(name, bold=True) for name in head]]
    for r in records:
        slow = "" if r.slow_by is None else f"{100 * r.slow_by:+.0f} %"
        last = f"{ago(now - r.last_t)}: {clean(r.last, 60)}" if r.last_t is not None else ""
        counts = [str(n or "") for n in (r.lost, r.failed, r.hung, r.checks_failed)]
        row = ["!" if r.suspect else "", clean(r.host), str(len(r.runs)), *counts, slow, last]
        rows.append([click.style(cell, fg="yellow") for cell in row] if r.suspect else row)
    print_table(rows)
