"""Say why a run failed or was interrupted."""

from __future__ import annotations

import click

from launcher.cli._options import complete_run


@click.command()
@click.argument("run", default="@last", shell_complete=complete_run)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(run: str, as_json: bool) -> None:
    """Say why RUN failed or was last interrupted: the root cause in one sentence, then the evidence.

    RUN defaults to the newest run.
    """
    import json
    import time

    from launcher.cli._say import say
    from launcher.report.diagnosis.why import explain
    from launcher.report.formats import plain_json
    from launcher.report.model.hearing import read_histories, run_now
    from launcher.report.model.runs import find, summarise_all

    now = time.time()
    (history,) = read_histories([find(run)], now)
    summary = summarise_all([history], now)[0]
    why = explain(history, summary, run_now(history, now))
    why.rows.extend(("files", fault) for fault in summary.file_faults)
    if as_json:
        click.echo(json.dumps(plain_json(why.as_json()), indent=1))
        return
    first, *rest = why.lines()
    click.echo(click.style(first, bold=True))
    for line in rest:
        say(line)
