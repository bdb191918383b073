"""Show where runs are."""

from __future__ import annotations

import click


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per run: a list when not exactly one is named.")
def command(runs: tuple[str, ...], as_json: bool) -> None:
    """Show where runs are: state, step, speed, what is saved, who is missing, what it cost.

    Without RUN: every run that has not ended, or the newest one.
    """
    import json
    import time

    from launcher.report.history import read_history
    from launcher.report.runs import all_runs, find, summarise_all

    now = time.time()
    if runs:
        histories = [read_history(find(name)) for name in runs]
    else:
        histories = [h for h in map(read_history, all_runs()) if h.outcome is None] or [
            read_history(paths) for paths in all_runs()[:1]
        ]
    summaries = summarise_all(histories, now)
    if as_json:
        values = [s.as_json() for s in summaries]
        click.echo(json.dumps(values[0] if len(runs) == 1 else values, indent=1))
        return
    if not summaries:
        click.echo("no runs yet; launcher submit job.yaml starts one")
    from launcher.report.status import colour, lines

    for s in summaries:
        head, *rest = lines(s, now)
        click.echo(head.replace(f"  {s.state}", f"  {click.style(s.state, fg=colour(s.state))}", 1))
        for line in rest:
            click.echo(line)
