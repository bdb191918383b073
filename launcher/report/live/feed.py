"""What the live view shows, read again and again. Files that have not changed are not read twice."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.opening import read_tail
from launcher.report.model.hearing import Hearing, run_now
from launcher.report.model.history import History
from launcher.report.model.ledger import Ledger, ledger
from launcher.report.model.runs import all_runs, ask_slurm, known_points, summarise_all
from launcher.report.model.series import metric_series, usage
from launcher.report.model.summary import RunSummary
from launcher.report.text.listing import ListingRow, group_sweeps, grouped_rows, main_metric_name
from launcher.run.events import Hang, WorkerFailed
from launcher.run.files import parse_lines
from launcher.run.paths import RunPaths

if TYPE_CHECKING:
    from launcher.slurm.jobs import JobView

SLURM_EVERY_S = 30.0
"""SLURM is asked at most this often, with one query for all jobs: sites ban users who poll the scheduler."""
LISTING_EVERY_S = 3.0
_TAIL = 1 << 18
_MOST_LISTED = 200


@dataclass
class Detail:
    """One run as the live view shows it."""

    summary: RunSummary
    history: History
    book: Ledger
    now: float
    """The time by the clock of the run's leader."""
    loss_name: str
    losses: list[float | None]
    speeds: list[float | None]
    failures: dict[int, int]
    """How often each rank ended a round: it failed first, or the others hung because it lagged behind."""


def tail_objects(path: Path, size: int = _TAIL, most: int = 0) -> list[dict[str, Any]]:
    """Return the JSON objects in the last ``size`` bytes of a file of lines; only its last ``most`` lines, if given."""
    try:
        data, begin = read_tail(path, size)
    except OSError:
        return []
    return parse_lines(path.name, data.split(b"\n")[begin > 0 :][-most:])


class LiveFeed:
    """Reads runs for the live view and keeps what has not changed."""

    def __init__(self) -> None:
        self.hidden = 0
        """Older runs that the overview leaves out."""
        self._hearing = Hearing()
        self._listed: tuple[float, Path | None, list[list[ListingRow]]] = (-math.inf, None, [])
        self._slurm: dict[str, tuple[float, Mapping[str, JobView] | None]] = {}
        """By job: when SLURM was asked, and its answer of then."""
        self._kept: dict[Path, tuple[tuple[int, int], Any]] = {}

    def overview(self, now: float, *, sweep: Path | None = None) -> list[list[ListingRow]]:
        """List runs, newest first: one row each, or all points of a sweep together. Of the sweep in a folder, list its points."""
        if time.monotonic() - self._listed[0] >= LISTING_EVERY_S or self._listed[1] != sweep:
            every = group_sweeps(all_runs()) if sweep is None else [[k] for k in known_points(sweep)]
            groups = every[:_MOST_LISTED] if sweep is None else every
            self.hidden = len(every) - len(groups)
            self._listed = (time.monotonic(), sweep, grouped_rows(groups, now, self._ask, self._read_all))
        return self._listed[2]

    def detail(self, paths: RunPaths, now: float) -> Detail:
        """Read one run as it is now."""
        history = self._hearing.read(paths)
        summary = summarise_all([history], now, self._ask)[0]
        name, losses = self._unless_same(paths.metrics, _losses)
        now = run_now(history, now)
        book = ledger(history, summary.ended or now)
        return Detail(
            summary=summary, history=history, book=book, now=now, loss_name=name, losses=losses,
            speeds=self._unless_same(paths.samples, _speeds), failures=_failures(history),
        )  # fmt: skip

    def _read_all(self, runs: list[RunPaths], now: float) -> list[History]:
        return [self._hearing.read(paths) for paths in runs]

    def _unless_same(self, path: Path, read: Callable[[Path], Any]) -> Any:
        """Return ``read(path)``, or its last result when the file has not changed since."""
        try:
            found = os.stat(path)
            mark = (found.st_mtime_ns, found.st_size)
        except OSError:
            mark = (0, 0)
        if path not in self._kept or self._kept[path][0] != mark:
            self._kept[path] = (mark, read(path))
        return self._kept[path][1]

    def _ask(self, job_ids: list[str]) -> dict[str, JobView] | None:
        """Return SLURM's view of the jobs, at most `SLURM_EVERY_S` old."""
        now = time.monotonic()
        old = [j for j in job_ids if j not in self._slurm or now - self._slurm[j][0] > SLURM_EVERY_S]
        if old:
            self._slurm |= dict.fromkeys(old, (now, ask_slurm(old)))
        answers = {j: self._slurm[j][1] for j in job_ids}
        if None in answers.values():
            return None
        return {j: views[j] for j, views in answers.items() if views and j in views}


def _losses(path: Path) -> tuple[str, list[float | None]]:
    curves = {one.name: one.y for one in metric_series(tail_objects(path))}
    name = main_metric_name(curves)
    return name, curves.get(name, [])


def _speeds(path: Path) -> list[float | None]:
    samples = tail_objects(path, 1 << 22, 500)  # one sample of 512 ranks takes 90 kB
    return next((one.y for one in usage(samples).get("throughput", [])), [])


def _failures(history: History) -> dict[int, int]:
    """Count the rounds that each rank ended. Ranks that failed because of another are an event of their own."""
    first = [e.rank for e in history.of(WorkerFailed)]
    late = [r.rank for e in history.of(Hang) for r in e.laggards]
    return dict(Counter(rank for rank in (*first, *late) if rank is not None))
