"""Write an HTML report about a run, or compare runs."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import click

from launcher.cli._options import json_option, runs_argument
from launcher.errors import RunDirError
from launcher.run.files import write_atomic

_MOST_NAMED = 10
"""Runs whose names are in that of the page."""


@click.command()
@runs_argument
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), help="Write to FILE. Default: RUN.html."
)
@json_option(help="Print the figures of the page as JSON, or write them to -o FILE.")
def command(runs: tuple[str, ...], output: str | None, as_json: bool) -> None:
    """Write an HTML page about RUN (default: the newest), or one that compares several RUNs.

    The page is one file and loads nothing: it opens without a network, and it prints well.
    """
    from launcher.report.formats import json_lines
    from launcher.report.model.hearing import read_histories, run_now
    from launcher.report.model.runs import previous_of, summarise_all
    from launcher.report.page.figures import figures
    from launcher.report.page.page import compare_page, read_page_data, run_page
    from launcher.submission.sweeps.points import single

    now = time.time()
    histories = read_histories([single(name) for name in runs or ("@last",)], now)
    told = [
        read_page_data(h, s, run_now(h, now)) for h, s in zip(histories, summarise_all(histories, now), strict=True)
    ]
    first, *others = told
    those = [t.short for t in others] if len(others) < _MOST_NAMED else ["and", str(len(others)), "more"]
    name = f"compare-{'-'.join([first.short, *those])}.html" if others else f"{first.summary.run}.html"
    before = None if others else previous_of(first.history.paths)
    if not as_json:
        _write(output or name, compare_page(told, now) if others else run_page(first, before, now))
        return
    # One object for one run, in one line; a list for several, which are compared with the first.
    values = [figures(first, before), *(figures(other, (first.summary.run, first.job)) for other in others)]
    text = json_lines(values) if others else json.dumps(values[0])
    if output is None:
        click.echo(text)
    else:
        _write(output, text)


def _write(output: str, text: str) -> None:
    target = Path(output)
    if os.path.lexists(target) and not stat.S_ISREG(os.lstat(target).st_mode):
        raise RunDirError(
            f"{target} is a link or no regular file, which the report does not replace: name another with -o"
        )
    try:
        whole = text.encode(errors="replace").decode()  # half characters have no bytes
        write_atomic(target, whole, mode=0o600, durable=False)
    except OSError as error:
        raise RunDirError(f"{target}: {error.strerror or error}") from None
    click.echo(f"{target}  ({target.stat().st_size // 1000} kB)")
