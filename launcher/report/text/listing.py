"""Many runs in one table: quick glances at ended runs, sweeps as one line, points sorted by a metric."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from launcher.report import formats
from launcher.report.model.hearing import read_histories
from launcher.report.model.history import History, as_dict, as_number, as_text, as_time, as_whole
from launcher.report.model.runs import Ask, Known, summarise_all
from launcher.report.model.summary import RunSummary
from launcher.report.model.verdict import State
from launcher.run.files import read_object
from launcher.run.paths import RunPaths

Reading = Callable[[list[RunPaths], float], list[History]]
"""Reads runs, as `read_histories` does."""

_STATES = ("completed", "failed", "cancelled")  # no set: a damaged state may be a list


@dataclass
class ListingRow:
    """One run in a list; times in seconds since the epoch."""

    run: str
    """Its id."""
    state: State
    """pending, running, completed, failed or cancelled."""
    reason: str = ""
    """Why it is pending, failed or cancelled."""
    step: int | None = None
    """Optimizer steps done."""
    total_steps: int | None = None
    """Of how many."""
    rate: float | None = None
    """Steps per second."""
    eta_s: float | None = None
    """Seconds of training that are left."""
    when: float | None = None
    """When it ended; for others, when it began or was submitted."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """The newest value of each metric."""
    sweep: str | None = None
    """The sweep it is a point of."""
    overrides: list[str] = field(default_factory=list)
    """What that point sets."""
    dir: str = ""
    """Its directory."""
    mark: str = ""
    """``of ANN``: whose it is; ``others can write``: who could change it. Empty for a run that is safely this user's."""


def rows(runs: list[Known], now: float, ask: Ask | None = None, read: Reading = read_histories) -> list[ListingRow]:
    """One row per run, in the order given. Ended runs cost one small file, others their whole history.

    ``ask`` answers for SLURM in place of the one batched query, ``read`` reads those whose history is wanted.
    """
    out: list[ListingRow | None] = [_glance(known) for known in runs]
    slow = [i for i, row in enumerate(out) if row is None and os.path.isdir(runs[i].root)]
    for i, s in zip(slow, summarise_all(read([runs[i].paths for i in slow], now), now, ask), strict=True):
        out[i] = _row(s, runs[i])
    return [row for row in out if row is not None]


def grouped_rows(
    groups: list[list[Known]], now: float, ask: Ask | None = None, read: Reading = read_histories
) -> list[list[ListingRow]]:
    """The `rows` of each group, without groups that have none any more."""
    by_run = {row.run: row for row in rows([known for group in groups for known in group], now, ask, read)}
    lines = [[by_run[known.id] for known in group if known.id in by_run] for group in groups]
    return [line for line in lines if line]


def _glance(known: Known) -> ListingRow | None:
    """The row of a run that has ended; None where the history must be read. A resubmission moves the outcome away first."""
    root = known.root
    outcome = read_object(f"{root}/outcome.json")
    if outcome is None or outcome.get("state") not in _STATES:
        return None
    ended = as_time(outcome.get("t"))
    if ended is None:
        return None
    return ListingRow(
        run=known.id,
        state=outcome["state"],
        reason=as_text(outcome.get("reason")),
        step=as_whole(outcome.get("step")),
        when=ended,
        metrics=as_dict(outcome.get("metrics")),
        sweep=known.sweep,
        overrides=known.overrides,
        dir=root,
        mark=known.mark,
    )


def has_ended(known: Known) -> bool:
    """Return whether the run has ended: a resubmission moves the outcome away first. Nothing is read."""
    return os.path.isfile(f"{known.root}/outcome.json")


def _row(s: RunSummary, known: Known) -> ListingRow:
    return ListingRow(
        run=s.run,
        state=s.state,
        reason=s.reason,
        step=s.step,
        total_steps=s.total_steps,
        rate=s.rate,
        eta_s=s.eta_s,
        when=s.ended or s.started or s.submitted,
        metrics=s.metrics,
        sweep=known.sweep or s.sweep,
        overrides=known.overrides or s.overrides,
        dir=s.dir,
        mark=known.mark,
    )


def group_sweeps(runs: list[Known]) -> list[list[Known]]:
    """What a list shows as one line each: a run by itself, or all points of a sweep."""
    groups: dict[str, list[Known]] = {}
    for known in runs:
        groups.setdefault(known.sweep or known.root, []).append(known)
    return list(groups.values())


def sweep_line(points: list[ListingRow]) -> tuple[State, str]:
    """The state that matters most in a sweep, and how many points are in which."""
    counts = Counter(p.state for p in points)
    order: tuple[State, ...] = ("running", "pending", "failed", "cancelled", "completed")
    words = [f"{counts[state]} {state}" for state in order if counts[state]]
    return next(s for s in order if counts[s]), f"{len(points)} points: {', '.join(words)}"


def main_metric_name(names: Iterable[str]) -> str:
    """The metric to show where there is room for one: the loss, else the first."""
    return min(names, key=lambda n: (n != "loss", "loss" not in n), default="")


def main_metric(metrics: dict[str, Any]) -> str:
    """The name and value of the metric to show where there is room for one."""
    name = main_metric_name(metrics)
    return f"{formats.clean(name, 16)} {formats.number(metrics[name])}" if metrics else ""


def best_metric(points: list[ListingRow]) -> str | None:
    """The metric to compare a sweep's points by: a loss where there is one, else the first of the commonest."""
    names = Counter(name for p in points for name in p.metrics)
    if not names:
        return None
    wanted = [n for n in names if n in ("val_loss", "test_loss", "eval_loss")] or [n for n in names if n == "loss"]
    return wanted[0] if wanted else names.most_common(1)[0][0]


def sort_by_metric(points: list[ListingRow], metric: str, *, descending: bool) -> list[ListingRow]:
    """Points with the metric first, best first; those without follow."""

    def place(point: ListingRow) -> tuple[bool, float]:
        value = as_number(point.metrics.get(metric))
        return value is None, (-value if descending else value) if value is not None else 0.0

    return sorted(points, key=place)
