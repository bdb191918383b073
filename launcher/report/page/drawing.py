"""Where a page draws the timeline's lanes, in per cent of their width. Pure."""

from __future__ import annotations

import bisect
import calendar
import math
import time
from collections.abc import Callable, Iterator
from itertools import accumulate, groupby

from launcher.frozen import frozen
from launcher.report import formats
from launcher.report.model.history import History
from launcher.report.model.timeline import Segment
from launcher.run.events import RoundStarted

AWAY_SHARE = 3.0
"""Per cent of the width that a time takes in which nobody wanted the run to run, however long it was."""
LEAST = 0.03
"""Boxes narrower than this many per cent are left out: nobody could see them."""
LEAST_MARKED = 3.0
"""Attempts narrower than this many per cent get no marks of their rounds: the marks would hide the attempt."""
MOST_LANES = 40
_NICE = (1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 1209600)
"""Seconds between ticks of the axis."""


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


_Axis = Callable[[float], float]
"""Time to per cent of the width."""


def _axis(segments: list[Segment]) -> _Axis:
    """Return an even axis, except that all times away have the same width."""
    away = sum(s.kind == "away" for s in segments)
    counted = sum(s.seconds for s in segments if s.kind != "away")
    scale = max(10.0, 100 - AWAY_SHARE * away) / counted if counted > 0 else 0.0
    gap = 100 * AWAY_SHARE / max(100, AWAY_SHARE * away + 10)
    widths = [gap if s.kind == "away" else s.seconds * scale for s in segments]
    lefts, ends = list(accumulate(widths, initial=0.0)), [s.end for s in segments]

    def at(t: float) -> float:
        i = bisect.bisect_left(ends, t)
        if i == len(ends):
            return 100.0
        s = segments[i]
        return lefts[i] + widths[i] * (max(t, s.start) - s.start) / s.seconds

    return at


def lanes(segments: list[Segment], h: History) -> Timeline:
    """Draw the timeline: one lane an attempt, with the time in the queue before it."""
    if not segments:
        return Timeline([], [], 0)
    groups = _by_attempt(segments)
    hidden = max(0, len(groups) - MOST_LANES)
    shown = [s for group in groups[hidden:] for s in group]
    at = _axis(shown)
    starts = [(e.t, e.round) for e in h.of(RoundStarted) if e.t >= shown[0].start]
    return Timeline([_lane(group, at, starts) for group in groups[hidden:]], _ticks(shown, at), hidden)


def _by_attempt(segments: list[Segment]) -> list[list[Segment]]:
    groups: list[list[Segment]] = [[]]
    for s in segments:
        if groups[-1] and s.kind in ("queued", "away") and groups[-1][-1].kind not in ("queued", "away"):
            groups.append([])
        groups[-1].append(s)
    return groups


def _lane(group: list[Segment], at: _Axis, starts: list[tuple[float, int | None]]) -> Lane:
    number = next((s.attempt for s in group if s.attempt is not None), None)
    first, last = group[0].start, group[-1].end
    boxes = []
    for kind, same in groupby(group, key=lambda s: s.kind):
        pieces = list(same)
        start, end = pieces[0].start, pieces[-1].end
        left, width = at(start), at(end) - at(start)
        if width >= LEAST:
            title = f"{kind}, {formats.duration(end - start)}, from {_moment(start)}"
            boxes.append(Box(kind, left, width, title))
    wide = at(last) - at(first) >= LEAST_MARKED
    rounds = [(at(t), f"round {r} began {_moment(t)}") for t, r in starts if wide and first <= t <= last]
    return Lane("queue" if number is None else f"attempt {number}", boxes, rounds)


def _moment(t: float) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.localtime(t))


def _ticks(segments: list[Segment], at: _Axis) -> list[tuple[float, str]]:
    """Return about five round local times along the axis."""
    begin, end = segments[0].start, segments[-1].end
    span = sum(s.seconds for s in segments if s.kind != "away")
    step = next((n for n in _NICE if span / n <= 6), _NICE[-1])
    form = "%H:%M:%S" if step < 60 else "%H:%M" if end - begin < 86400 else "%m-%d %H:%M" if step < 86400 else "%m-%d"
    ticks: list[tuple[float, str]] = []
    for is_away, stretch in groupby(segments, key=lambda s: s.kind == "away"):
        first, *rest = stretch
        for t in () if is_away else _round_times(first.start, (rest or [first])[-1].end, step):
            x = at(t)
            if x <= 97 and (not ticks or x - ticks[-1][0] >= 8):
                ticks.append((x, time.strftime(form, time.localtime(t))))
    return ticks


def _round_times(begin: float, end: float, step: int) -> Iterator[float]:
    """Yield the times between at which a local clock shows a multiple of ``step`` seconds, also after it was changed."""
    shown = math.ceil(calendar.timegm(time.localtime(begin)) / step) * step  # as if the clock were one of UTC
    while (t := time.mktime((*time.gmtime(shown)[:8], -1))) <= end:
        if t >= begin:
            yield t
        shown += step
