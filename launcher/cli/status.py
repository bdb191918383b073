"""Show the state of runs: step, speed, checkpoints, cost."""

from __future__ import annotations

import os
import time

import click

from launcher.cli._options import json_option, runs_argument


@click.command()
@runs_argument
@json_option(help="Print one JSON object for one RUN; for several, and for a sweep, a list.")
def command(runs: tuple[str, ...], as_json: bool) -> None:
    """Show the state of runs: step, speed, what is saved, which ranks are missing, and what the run cost.

    Without RUN, show every run that has not ended, else the newest one. docs/json.md lists the keys of --json.
    """
    from launcher.cli._output import NO_RUNS, print_json, print_wrapped
    from launcher.report.model.hearing import read_histories, run_now
    from launcher.report.model.history import read_history
    from launcher.report.model.ledger import advice_in_words, advise, cost_in_words, goodput_in_words, ledger
    from launcher.report.model.runs import all_runs, summarise_all, summary_of
    from launcher.report.model.troubles import troubles
    from launcher.report.text.listing import has_ended
    from launcher.report.text.status import colour, lines, past, standing
    from launcher.run.index import is_sweep, resolve
    from launcher.submission.sweeps.points import runs_at

    now = time.time()
    if runs:
        histories = read_histories([paths for name in runs for paths in runs_at(resolve(name))], now)
        summaries = summarise_all(histories, now)
    else:
        known = [k for k in all_runs() if os.path.isdir(k.root)]
        perhaps = read_histories([k.paths for k in known if not has_ended(k)], now)
        pairs = [(h, s) for h, s in zip(perhaps, summarise_all(perhaps, now), strict=True) if s.active]
        pairs = pairs or [(h, summary_of(h, now)) for k in known[:1] for h in [read_history(k.paths)]]
        histories, summaries = [h for h, _ in pairs], [s for _, s in pairs]
    times = [run_now(h, now) for h in histories]
    books = [ledger(h, s.ended or t) for h, s, t in zip(histories, summaries, times, strict=True)]
    wrong = [troubles(h, s, t) for h, s, t in zip(histories, summaries, times, strict=True)]
    rows = list(zip(histories, summaries, books, wrong, strict=True))
    if as_json:
        values = [standing(s, book, advise(h, book), found) for h, s, book, found in rows]
        print_json(values[0] if len(runs) == 1 and not is_sweep(resolve(runs[0])) else values)
        return
    if not summaries:
        click.echo(NO_RUNS)
    from launcher.report.diagnosis.why import explain

    for (h, s, book, found), now in zip(rows, times, strict=True):
        why = explain(h, s, now).sentence if s.state in ("failed", "cancelled") else ""
        head, *rest = lines(
            s, now, wrong=found, history=past(book, now), goodput=goodput_in_words(book), cost=cost_in_words(book),
            advice=advice_in_words(advise(h, book)), why=why,
        )  # fmt: skip
        click.echo(head.replace(f"  {s.state}", f"  {click.style(s.state, fg=colour(s.state))}", 1))
        for line in rest:
            print_wrapped(line)
