"""Where a page draws what: the goodput bar and the timeline's lanes, in per cent of their width; pure."""

from __future__ import annotations

import bisect
import math
import time

from launcher.frozen import frozen
from launcher.report import formats
from launcher.report.model.history import History
from launcher.report.model.ledger import COUNTED, Ledger, shares
from launcher.report.model.timeline import Segment

__all__ = ["Band", "Box", "Lane", "Timeline", "bands", "lanes"]

AWAY_SHARE = 3.0
"""Per cent of the width that a time in which nobody wanted the run to run takes, however long it was."""
LEAST = 0.03
"""Boxes narrower than this many per cent are left out: they could not be seen."""
LEAST_MARKED = 3.0
"""Attempts narrower than this many per cent get no marks of their rounds: these would hide what they mark."""
MOST_LANES = 40


@frozen
class Band:
    """One kind of time in the goodput bar."""

    kind: str
    share: float
    percent: int
    words: str


@frozen
class Box:
    """One piece of the timeline."""

    kind: str
    left: float
    width: float
    title: str


@frozen
class Lane:
    """One attempt: its boxes, and where its rounds began."""

    label: str
    boxes: list[Box]
    rounds: list[tuple[float, str]]


@frozen
class Timeline:
    """All lanes over one axis."""

    lanes: list[Lane]
    ticks: list[tuple[float, str]]
    hidden: int
    """Attempts left out."""


def bands(book: Ledger) -> list[Band]:
    """The goodput bar: kinds that took any time, useful first."""
    total, whole = book.total_s, shares(book)
    if total <= 0:
        return []
    return [
        Band(kind, 100 * book.seconds[kind] / total, whole[kind], formats.duration(book.seconds[kind]))
        for kind in COUNTED
        if book.seconds[kind] > 0
    ]


class _Axis:
    """Time to per cent: even, but for times away, which all look alike."""

    def __init__(self, segments: list[Segment]) -> None:
        away = sum(1 for s in segments if s.kind == "away")
        counted = sum(s.seconds for s in segments if s.kind != "away")
        scale = max(10.0, 100 - AWAY_SHARE * away) / counted if counted > 0 else 0.0
        self.points: list[tuple[float, float]] = []
        x = 0.0
        for s in segments:
            self.points.append((s.start, x))
            x += 100 * AWAY_SHARE / max(100, AWAY_SHARE * away + 10) if s.kind == "away" else s.seconds * scale
            self.points.append((s.end, x))
        self.ends = [t for t, _ in self.points[1::2]]

    def at(self, t: float) -> float:
        """Where ``t`` lies."""
        place = bisect.bisect_left(self.ends, t)
        if place == len(self.ends):
            return 100.0
        (t0, x0), (t1, x1) = self.points[2 * place : 2 * place + 2]
        return x0 + (x1 - x0) * (max(t, t0) - t0) / (t1 - t0)


def lanes(segments: list[Segment], h: History) -> Timeline:
    """The timeline: one lane an attempt, the time in the queue before it included."""
    if not segments:
        return Timeline([], [], 0)
    groups = _by_attempt(segments)
    hidden = max(0, len(groups) - MOST_LANES)
    shown = [s for group in groups[hidden:] for s in group]
    axis = _Axis(shown)
    starts = [(e["t"], e.get("round")) for e in h.of("round_started") if e["t"] >= shown[0].start]
    return Timeline([_lane(group, axis, starts) for group in groups[hidden:]], _ticks(shown, axis), hidden)


def _by_attempt(segments: list[Segment]) -> list[list[Segment]]:
    """An attempt's segments together, the time in the queue before it included."""
    groups: list[list[Segment]] = [[]]
    for s in segments:
        if groups[-1] and s.kind in ("queued", "away") and groups[-1][-1].kind not in ("queued", "away"):
            groups.append([])
        groups[-1].append(s)
    return groups


def _lane(group: list[Segment], axis: _Axis, starts: list[tuple[float, object]]) -> Lane:
    numbers = [s.attempt for s in group if s.attempt is not None]
    first, last = group[0].start, group[-1].end
    wide = axis.at(last) - axis.at(first) >= LEAST_MARKED
    rounds = [(axis.at(t), f"round {r} began {_clock(t)}") for t, r in starts if wide and first <= t <= last]
    return Lane(f"attempt {numbers[0]}" if numbers else "queue", _boxes(group, axis), rounds)


def _boxes(group: list[Segment], axis: _Axis) -> list[Box]:
    boxes = []
    for s in _joined(group):
        left, right = axis.at(s.start), axis.at(s.end)
        if right - left >= LEAST:
            title = f"{s.kind}, {formats.duration(s.seconds)}, from {_clock(s.start)}"
            boxes.append(Box(s.kind, left, right - left, title))
    return boxes


def _joined(group: list[Segment]) -> list[Segment]:
    """Pieces of one kind that follow each other as one."""
    out: list[Segment] = []
    for s in group:
        if out and out[-1].kind == s.kind and s.start - out[-1].end < 0.01:
            out[-1] = Segment(s.kind, out[-1].start, s.end, s.attempt, s.round)
        else:
            out.append(s)
    return out


def _clock(t: float) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.localtime(t))


_NICE = (1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 1209600)


def _ticks(segments: list[Segment], axis: _Axis) -> list[tuple[float, str]]:
    """About five round local times along the axis."""
    begin, end = segments[0].start, segments[-1].end
    span = sum(s.seconds for s in segments if s.kind != "away")
    step = next((n for n in _NICE if span / n <= 6), _NICE[-1])
    offset = time.localtime(begin).tm_gmtoff or 0
    t = math.ceil((begin + offset) / step) * step - offset
    form = "%H:%M:%S" if step < 60 else "%H:%M" if end - begin < 86400 else "%m-%d %H:%M" if step < 86400 else "%m-%d"
    ticks: list[tuple[float, str]] = []
    while t <= end and len(ticks) < 2000:
        x = axis.at(t)
        if not ticks or x - ticks[-1][0] >= 8:
            ticks.append((x, time.strftime(form, time.localtime(t))))
        t += step
    return [tick for tick in ticks if tick[0] <= 97]
