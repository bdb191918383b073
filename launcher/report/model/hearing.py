"""Find out how long ago a run's files changed, although the clocks of their writer and their reader may differ by hours.

A leader writes its picture once a second. Where the newest one is older than a minute by this reader's clock, or lies ahead,
either the leader is silent or a clock is wrong. The reader then looks again: a file that changes has a writer.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

from launcher.report.model.history import EventFile, History, read_history
from launcher.run import clock
from launcher.run.events import AttemptStarted, Requeued, RoundStarted, RunSubmitted
from launcher.run.files import read_object
from launcher.run.paths import RunPaths

STALE_S = 60.0
"""The leader writes its picture once a second; NFS clients may show a file up to 60 s late."""
LOOK_S = 2.5
"""A leader whose files do not change for this long is silent."""
_PAUSE_S = 0.25
_WRONG_S = 86400.0
"""A run whose last word is older than this is not looked at twice: no clock is that wrong, it has been silent for days."""


def is_waiting(h: History) -> bool:
    """Return whether the newest event says that the job was queued."""
    last = h.last(RunSubmitted, Requeued, AttemptStarted, RoundStarted)
    return last is None or isinstance(last, (RunSubmitted, Requeued))


def heard(h: History) -> float | None:
    """Return when the run's files were last written, in seconds since the epoch, by the writer's clock."""
    times = [e.t for e in h.events[-1:]]
    if not h.events or not is_waiting(h):
        times += [h.state["t"]] if h.state.get("t") is not None else []
    return max(times, default=None)


def silence(h: History, now: float) -> float:
    """Return the seconds since then; infinite where the clocks do not tell and no file changes."""
    if not is_waiting(h) and (exact := clock.since(h.state)) is not None:
        return exact
    last: float | None = heard(h) or h.submission.get("submitted_t")
    if last is None:
        return 0.0
    by_clocks = now - last
    if abs(by_clocks) <= STALE_S:
        return max(0.0, by_clocks)
    if h.quiet_s is not None and h.quiet_s < LOOK_S:
        return h.quiet_s
    if by_clocks > 0:
        return by_clocks
    return 0.0 if h.quiet_s is None and not is_waiting(h) else math.inf


def run_now(h: History, now: float) -> float:
    """Return ``now`` by the clock of the run's leader, where that is known: its times are compared with no other clock."""
    last = heard(h)
    if last is None or is_waiting(h):
        return now
    told: float | None = h.state.get("t")
    if told is not None and (exact := clock.since(h.state)) is not None:
        return told + exact
    quiet = silence(h, now) if h.outcome is None else now - last
    return last + quiet if math.isfinite(quiet) else last


def read_histories(runs: list[RunPaths], now: float) -> list[History]:
    """Read runs. Those that are silent, or only seem so by a wrong clock, are looked at again for some seconds."""
    found = [read_history(paths) for paths in runs]
    doubtful = [i for i, h in enumerate(found) if _is_doubtful(h, now)]
    end = time.monotonic() + LOOK_S
    while doubtful and time.monotonic() < end:
        time.sleep(_PAUSE_S)
        for i in list(doubtful):
            if _changed(found[i]):
                found[i] = dataclasses.replace(read_history(runs[i]), quiet_s=0.0)
                doubtful.remove(i)
    for i in doubtful:
        found[i] = dataclasses.replace(found[i], quiet_s=LOOK_S)
    return found


def _is_doubtful(h: History, now: float) -> bool:
    if h.outcome is not None or not h.state or is_waiting(h) or clock.since(h.state) is not None:
        return False
    return STALE_S < abs(now - (heard(h) or now)) < _WRONG_S


def _changed(h: History) -> bool:
    return (read_object(h.paths.state) or {}).get("t") != h.state.get("t") or h.paths.outcome.exists()


class Hearing:
    """Reads runs again and again, and remembers since when the files of each have not changed."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Any, float]] = {}
        self._events: dict[str, EventFile] = {}

    def read(self, paths: RunPaths) -> History:
        """The run's files, and for how long they have not changed."""
        h = read_history(paths, self._events.setdefault(str(paths.root), EventFile(paths.events)))
        told, now = (h.state.get("t"), len(h.events)), time.monotonic()
        before, since = self._seen.get(str(paths.root), (None, now))
        since = since if told == before else now
        self._seen[str(paths.root)] = told, since
        return dataclasses.replace(h, quiet_s=now - since)
