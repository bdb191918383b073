"""What the live view shows, read again and again: files that have not changed are not read twice."""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.report.model.hearing import Hearing, run_now
from launcher.report.model.history import History, as_dict, as_list, as_number
from launcher.report.model.ledger import Advice, Ledger, advise, ledger
from launcher.report.model.runs import all_runs, ask_slurm, needs_slurm
from launcher.report.model.summary import RunSummary, summarise_history
from launcher.report.model.verdict import SlurmView
from launcher.report.text.listing import Row, group_sweeps, rows
from launcher.run.files import NO_JSON
from launcher.run.paths import RunPaths

__all__ = ["Detail", "Feed", "tail_objects"]

SLURM_EVERY_S = 30.0
"""SLURM is asked at most this often, with one question for all: a view that polls the scheduler gets banned."""
LISTING_EVERY_S = 3.0
_TAIL = 1 << 18


@dataclass
class Detail:
    """One run as the live view shows it."""

    summary: RunSummary
    history: History
    book: Ledger
    advice: Advice
    now: float
    """The time by the clock of the run's leader."""
    losses: list[float | None] = field(default_factory=list)
    loss_name: str = ""
    speeds: list[float | None] = field(default_factory=list)
    failures: dict[int, int] = field(default_factory=dict)
    """How often each rank ended a round: it was the first to fail, or all others hung because it lagged behind."""


def tail_objects(path: Path, size: int = _TAIL, most: int | None = None) -> list[dict[str, Any]]:
    """JSON objects of the last ``size`` bytes of a file of lines; of the last ``most`` of these lines, if given."""
    try:
        with path.open("rb") as f:
            end = f.seek(0, os.SEEK_END)
            f.seek(max(0, end - size))
            lines = f.read(size).split(b"\n")
    except OSError:
        return []
    out = []
    whole = lines[1:] if end > size else lines
    for line in whole if most is None else whole[-most:]:
        try:
            value = json.loads(line)
        except NO_JSON:
            continue
        if isinstance(value, dict):
            out.append(value)
    return out


class Feed:
    """Reads runs for the live view; keeps what has not changed."""

    def __init__(self) -> None:
        self.hidden = 0
        """Older runs that the overview leaves out."""
        self._hearing = Hearing()
        self._listed: tuple[float, list[list[Row]]] = (-math.inf, [])
        self._of: str | None = None
        self._slurm: dict[str, tuple[float, SlurmView | None, bool]] = {}
        self._kept: dict[tuple[str, str], tuple[tuple[int, int], Any]] = {}

    def overview(self, now: float, most: int = 200, *, sweep: str | None = None) -> list[list[Row]]:
        """Runs as lists show them, newest first: one row each, or all points of a sweep together; or one sweep's points."""
        if time.monotonic() - self._listed[0] >= LISTING_EVERY_S or self._of != sweep:
            known = all_runs()
            every = group_sweeps(known) if sweep is None else [[k] for k in known if k.sweep == sweep]
            groups = every[:most] if sweep is None else every
            self._of, self.hidden = sweep, len(every) - len(groups)
            by_run = {row.run: row for row in rows([k for g in groups for k in g], now, ask=self._ask, read=self._read)}
            lines = [[by_run[k.id] for k in g if k.id in by_run] for g in groups]
            self._listed = (time.monotonic(), [line for line in lines if line])
        return self._listed[1]

    def detail(self, paths: RunPaths, now: float) -> Detail:
        """One run now."""
        history = self._hearing.read(paths)
        summary = summarise_history(history, None, now)
        if needs_slurm(summary, history, now) and summary.job_id is not None:
            views = self._ask([summary.job_id])
            summary = summarise_history(history, views, now)
        name, losses = self._unless_same(paths.metrics, _losses)
        now = run_now(history, now)
        book = ledger(history, summary.ended or now)
        return Detail(
            summary=summary, history=history, book=book, advice=advise(history, book), loss_name=name, losses=losses,
            speeds=self._unless_same(paths.samples, _speeds), failures=_failures(history), now=now,
        )  # fmt: skip

    def _read(self, runs: list[RunPaths], now: float) -> list[History]:
        return [self._hearing.read(paths) for paths in runs]

    def _unless_same(self, path: Path, read: Any) -> Any:
        """``read(path)``, or what it gave last time when the file has not changed since."""
        try:
            found = os.stat(path)
            mark = (found.st_mtime_ns, found.st_size)
        except OSError:
            mark = (0, 0)
        key = (str(path), read.__name__)
        kept = self._kept.get(key)
        if kept is None or kept[0] != mark:
            kept = self._kept[key] = (mark, read(path))
        return kept[1]

    def _ask(self, job_ids: list[str]) -> dict[str, SlurmView] | None:
        """SLURM's view, at most `SLURM_EVERY_S` old."""
        now = time.monotonic()
        old = [j for j in job_ids if j not in self._slurm or now - self._slurm[j][0] > SLURM_EVERY_S]
        if old:
            views = ask_slurm(old)
            for j in old:
                self._slurm[j] = (now, views.get(j) if views is not None else None, views is not None)
        if not all(self._slurm[j][2] for j in job_ids):
            return None
        return {j: view for j in job_ids if (view := self._slurm[j][1]) is not None}


def _losses(path: Path) -> tuple[str, list[float | None]]:
    lines = tail_objects(path)
    names = [n for line in lines for n in as_dict(line.get("metrics"))]
    name = "loss" if "loss" in names else next((n for n in names if "loss" in n), names[0] if names else "")
    values = [as_dict(line.get("metrics")).get(name) for line in lines if name in as_dict(line.get("metrics"))]
    return name, [as_number(v) for v in values]


def _speeds(path: Path) -> list[float | None]:
    out: list[float | None] = []
    last: tuple[float, float, object] | None = None
    for line in tail_objects(path, 1 << 22, 500):  # one of 512 ranks has 90 kB
        steps = [s for s in (as_number(as_dict(r).get("step")) for r in as_list(line.get("ranks"))) if s is not None]
        t, place = as_number(line.get("t")), (line.get("attempt"), line.get("round"))
        if t is None or not steps:
            continue
        if last is not None:
            same = last[2] == place and t > last[0] and max(steps) >= last[1]
            out.append((max(steps) - last[1]) / (t - last[0]) if same else None)
        last = (t, max(steps), place)
    return out


def _failures(history: History) -> dict[int, int]:
    """A round's victims are an event of their own, and count for nothing."""
    first = [e.get("rank") for e in history.of("worker_failed")]
    late = [as_dict(r).get("rank") for e in history.of("hang") for r in as_list(e.get("laggards"))]
    return dict(Counter(rank for rank in (*first, *late) if isinstance(rank, int)))
