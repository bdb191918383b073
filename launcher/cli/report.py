"""Write an HTML report about a run, or compare runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from launcher.cli._options import complete_run

if TYPE_CHECKING:
    from launcher.report.page.page import PageData


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=complete_run)
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), help="Write to FILE. Default: RUN.html."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the figures of the page as JSON, or write them to -o FILE."
)
def command(runs: tuple[str, ...], output: str | None, as_json: bool) -> None:
    """Write an HTML page about RUN (default: the newest), or one that compares several RUNs.

    The page is one file and loads nothing: it opens without a network, and it prints well.
    """
    import time

    from launcher.report.model.hearing import read_histories, run_now
    from launcher.report.model.runs import find, summarise_all
    from launcher.report.page.page import read_page_data

    now = time.time()
    histories = read_histories([find(name) for name in runs or ("@last",)], now)
    told = [
        read_page_data(h, s, run_now(h, now)) for h, s in zip(histories, summarise_all(histories, now), strict=True)
    ]
    text = _figures(told) if as_json else _page(told, now)
    if as_json and output is None:
        click.echo(text)
        return
    default = f"{told[0].summary.run}.html" if len(told) == 1 else f"compare-{'-'.join(t.short for t in told)}.html"
    _write(output or default, text)


def _page(told: list[PageData], now: float) -> str:
    from launcher.report.model.runs import previous_of
    from launcher.report.page.page import compare_page, run_page

    return run_page(told[0], previous_of(told[0].history.paths), now) if len(told) == 1 else compare_page(told, now)


def _figures(told: list[PageData]) -> str:
    """One object for one run, in one line; a list for several, which are compared with the first."""
    import json

    from launcher.report.formats import json_lines
    from launcher.report.model.runs import previous_of
    from launcher.report.page.figures import figures

    if len(told) == 1:
        return json.dumps(figures(told[0], previous_of(told[0].history.paths)))
    first = told[0].summary.run, told[0].job
    return json_lines([figures(told[0], None), *(figures(other, first) for other in told[1:])])


def _write(output: str, text: str) -> None:
    from pathlib import Path

    from launcher.errors import RunDirError

    target = Path(output)
    try:
        target.write_text(text, encoding="utf-8", errors="replace")  # half characters have no bytes
        target.chmod(0o600)
    except OSError as error:
        raise RunDirError(f"{target}: {error.strerror or error}") from None
    click.echo(f"{target}  ({target.stat().st_size // 1000} kB)")
