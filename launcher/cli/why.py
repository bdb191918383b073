"""Explain why a run failed or was interrupted."""

from __future__ import annotations

import time

import click

from launcher.cli._options import complete_run, json_option


@click.command()
@click.argument("run", default="@last", shell_complete=complete_run)
@json_option(help="Print one JSON object.")
def command(run: str, as_json: bool) -> None:
    """Explain why RUN failed or was last interrupted: the cause in one sentence, then the evidence.

    RUN defaults to the newest run.
    """
    print_why(run, as_json=as_json)


def print_why(run: str, *, as_json: bool = False) -> None:
    """Print why a run failed or was interrupted."""
    from launcher.cli._output import print_json, print_wrapped
    from launcher.report.diagnosis.why import explain
    from launcher.report.model.hearing import read_histories, run_now
    from launcher.report.model.runs import summarise_all
    from launcher.submission.sweeps.points import single

    now = time.time()
    (history,) = read_histories([single(run)], now)
    summary = summarise_all([history], now)[0]
    why = explain(history, summary, run_now(history, now))
    why.rows.extend(("files", fault) for fault in summary.file_faults)
    if as_json:
        print_json(why.as_json())
        return
    first, *rest = why.lines()
    click.echo(click.style(first, bold=True))
    for line in rest:
        print_wrapped(line)
