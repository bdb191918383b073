"""One run in a few lines, as ``launcher status`` prints them; pure."""

from __future__ import annotations

import dataclasses
from typing import Any

from launcher.report import formats
from launcher.report.model.ledger import Advice, Ledger
from launcher.report.model.problems import shortened
from launcher.report.model.summary import RunSummary
from launcher.report.model.troubles import Trouble
from launcher.report.text.words import lost_steps, meaning
from launcher.run.units import short_list

_MOST_TROUBLES = 3
_OF_TRAINING = ("goodput", "advice")
"""Rows that say nothing of a hold, which trains nothing."""
_COLOURS = {"pending": "yellow", "running": "cyan", "completed": "green", "failed": "red", "cancelled": "magenta"}


def colour(state: str) -> str:
    """The colour of a state; it never stands alone, the word is always there."""
    return _COLOURS.get(state, "white")


def headline(s: RunSummary) -> str:
    """``RUN  running  job 482913  attempt 2, round 0``."""
    parts = [s.run, s.state]
    if s.state == "pending" and s.reason:
        parts[-1] += f" ({formats.clean(s.reason, 60)})"
    if s.phase == "suspended":
        parts[-1] += " (suspended)"
    if s.silent:
        parts[-1] += "?"
    if s.hold not in (None, s.run):
        parts.append(f"in {s.hold}")
    elif s.job_id and s.backend == "slurm":
        parts.append(f"job {s.job_id}")
    elif s.backend == "local":
        parts.append("on this machine")
    if s.attempt is not None:
        parts.append(f"attempt {s.attempt}" + (f", round {s.round}" if s.round is not None else ""))
    return "  ".join(parts)


def labelled(s: RunSummary, now: float, *, wrong: list[Trouble], why: str = "", **more: str) -> dict[str, str]:
    """Everything ``status`` says of a run below the head line, by label; ``why`` is a better reason than the leader's.

    ``wrong``: its troubles, the most pressing first; ``more``: history, goodput, cost and advice, in words.
    """
    rows = {
        "trouble": formats.clean(" ".join(trouble.sentence for trouble in wrong[:_MOST_TROUBLES]), 600),
        "next": wrong[0].next if wrong else "",
        "reason": why or ("" if s.state == "pending" else formats.clean(s.reason)),
        "waiting": _waiting(s, now),
        "phase": _phase(s),
        "step": _step(s),
        "progress": unreported(s),
        "saved": _saved(s, now),
        "warned": formats.clean(shortened(s.warnings), 600),
        "metrics": formats.metric_list(s.metrics),
        "ranks": _ranks(s),
        "limit": _limit(s),
        "took": _took(s, now),
        **{label: text for label, text in more.items() if s.hold != s.run or label not in _OF_TRAINING},
        "files": shortened(s.file_faults),
    }
    return {label: value for label, value in rows.items() if value}


def lines(s: RunSummary, now: float, *, wrong: list[Trouble], **more: str) -> list[str]:
    """The lines of ``status``: the head line, then what is `labelled`."""
    return [headline(s)] + [f"  {label:<8} {value}" for label, value in labelled(s, now, wrong=wrong, **more).items()]


def standing(s: RunSummary, book: Ledger, advice: Advice, wrong: list[Trouble]) -> dict[str, Any]:
    """The object of ``status --json``."""
    told = {"ledger": book.as_json(), "advice": dataclasses.asdict(advice)}
    return {**s.as_json(), **told, "troubles": [dataclasses.asdict(trouble) for trouble in wrong]}


def past(book: Ledger, now: float, limit: int = 3) -> str:
    """``08:42 preempted, 0 steps lost; 03:10 crash, 14 steps lost``: the newest interruptions first."""
    told = [
        f"{formats.time_of_day(stop.t, now)} {meaning(stop.cause)}{lost_steps(stop.lost_steps)}"
        for stop in reversed(book.interruptions[-limit:])
    ]
    more = len(book.interruptions) - limit
    return "; ".join(told) + (f"; {more} earlier" if more > 0 else "")


def _waiting(s: RunSummary, now: float) -> str:
    if s.state != "pending" or not s.queued or s.backend != "slurm":
        return ""
    start = f", starts about {formats.time_of_day(s.starts, now)} by SLURM's estimate" if s.starts else ""
    return f"{formats.duration(now - s.queued)} in the queue{start}"


def _phase(s: RunSummary) -> str:
    return (
        s.doing if s.state == "running" and s.phase not in ("", "training", "ended", "suspended") and not s.late else ""
    )


def unreported(s: RunSummary) -> str:
    """That a plain script reports nothing, and where its progress is to be seen; "" of all others."""
    plain = s.state == "running" and s.ranks and all(r.get("phase") in ("script", "ended") for r in s.ranks)
    if not plain or s.step or s.total_steps:
        return ""
    return f"not reported by the script (launcher.attach() would): launcher logs {s.run} -f shows what it prints"


def _step(s: RunSummary) -> str:
    if s.step is None or (not s.step and not s.total_steps):  # a script that reports no steps stays at 0
        return ""
    out = formats.count(s.step)
    if s.total_steps:
        out += f" of {formats.count(s.total_steps)} ({formats.percent(s.step, s.total_steps)})"
    if s.state == "running" and s.rate:
        out += f", {formats.rate(s.rate)}"
        if s.eta_s is not None:
            out += f", done in {formats.duration(s.eta_s)}"
    return out


def _saved(s: RunSummary, now: float) -> str:
    when = f", {formats.ago(now - s.saved_t)}" if s.saved_t else ""
    if s.saved_step is not None:
        return f"step {formats.count(s.saved_step)}{when}"
    return f"{formats.clean(s.saved_path, 60)} (the script's own){when}" if s.saved_path else ""


def _ranks(s: RunSummary) -> str:
    if not s.nodes or s.world_size is None:
        return ""
    running = s.state == "running"
    there = f"{sum(1 for r in s.ranks if r.get('pid'))} of " if running and s.ranks else ""
    spare = f", {len(s.spares)} spare" if s.spares else ""
    slow = f"; slowest rank {s.slowest[0]} (+{100 * s.slowest[1]:.0f} %)" if running and s.slowest else ""
    return f"{there}{s.world_size} on {short_list(s.nodes)}{spare}{slow}"


def _limit(s: RunSummary) -> str:
    if s.state != "running" or s.backend != "slurm":
        return ""
    left = ((s.left_here_s, "in this attempt"), (s.left_in_all_s, "in all"))
    return "; ".join(f"{formats.duration(seconds)} left {where}" for seconds, where in left if seconds is not None)


def _took(s: RunSummary, now: float) -> str:
    if s.active or s.started is None or s.ended is None:
        return ""
    return f"{formats.duration(s.ended - s.started)}, ended {formats.time_of_day(s.ended, now)}"
