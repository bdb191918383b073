"""The live view: which screen is shown and what keys do. The terminal itself belongs to `launcher.cli.watch`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.text import Text

from launcher.report.diagnosis.traces import tail
from launcher.report.live.feed import Detail, LiveFeed
from launcher.report.live.screen import detail_screen, folded, log_screen, overview_screen, sorted_groups
from launcher.report.text.listing import ListingRow
from launcher.run.events import RoundStarted
from launcher.run.index import is_sweep
from launcher.run.paths import RunPaths

_SAME = {"k": "up", "j": "down", "esc": "left", "backspace": "left", "h": "left", "enter": "right"}
"""Keys that do what another does."""


@dataclass
class View:
    """The state of the live view. ``stop`` saves and cancels a run and returns one line about what came of it."""

    feed: LiveFeed
    stop: Callable[[RunPaths], str]
    run: RunPaths | None = None
    sweep: Path | None = None
    """The folder of a sweep whose points are shown, not all runs."""
    only_one: bool = False
    """Begun with a RUN or a sweep: going back quits."""
    gone_s: float = 5.0
    """A folder that is away for longer is said to be gone."""
    place: int = 0
    """The marked line of the overview."""
    rank: int = 0
    """The marked rank's place in the table."""
    log: bool = False
    back: int = 0
    """Lines above the log's end."""
    asking: RunPaths | None = None
    ending: RunPaths | None = None
    """To be cancelled once the screen says so: SLURM may take some seconds."""
    note: str = ""
    done: bool = False
    _groups: list[list[ListingRow]] = field(default_factory=list)
    _detail: Detail | None = None
    _there: float = 0.0
    """When the shown run's folder was last there."""

    def render(self, width: int, height: int, now: float) -> list[Text]:
        """Return the screen as it is now: exactly ``height`` lines."""
        note = f"Save and cancel {self.asking.id}? y/n" if self.asking else self.note
        if self.run is None:
            self._groups = sorted_groups(self.feed.overview(now, sweep=self.sweep))
            self.place = min(self.place, max(0, len(self._groups) - 1))
            hidden, sweep = self.feed.hidden, self.sweep.name if self.sweep else None
            return overview_screen(self._groups, self.place, width, height, now, note, hidden, sweep=sweep)
        if self._detail is None or self.run.root.is_dir():  # without its files a run that trains would seem to wait
            self._detail, self._there = self.feed.detail(self.run, now), time.monotonic()
        elif time.monotonic() - self._there > self.gone_s:
            note = note or f"its folder was deleted or moved: {self.run.root}"
        detail = self._detail
        self.rank = min(self.rank, max(0, len(detail.summary.ranks) - 1))
        if not self.log:
            return detail_screen(detail, self.rank, width, height, note)
        title, path = self._log(detail, self.run)
        lines = folded(tail(path), width)
        self.back = min(self.back, max(0, len(lines) - height + 2))
        return log_screen(title, lines, self.back, width, height, note)

    def _log(self, detail: Detail, run: RunPaths) -> tuple[str, Path]:
        """Return the title and the path of the marked rank's newest log."""
        s, begun = detail.summary, detail.history.last(RoundStarted)
        rank = s.ranks[self.rank].get("rank", self.rank) if s.ranks else 0
        attempt = (s.attempt if begun is None else begun.attempt) or 0
        round_ = (begun and begun.round) or 0
        path = run.rank_log(attempt, round_, rank if isinstance(rank, int) else 0)
        ranks = len(begun.ranks if begun else ()) or s.world_size or 1
        return f"rank {rank} of {ranks}, attempt {attempt}, round {round_}   {path}", path

    def press(self, key: str) -> None:
        """Do what one key says."""
        self.note = ""
        key = _SAME.get(key, key)
        if self.asking is not None:
            run, self.asking = self.asking, None
            if key == "y":
                self.ending, self.note = run, f"saving and cancelling {run.id} ..."
        elif key in ("q", "ctrl-c"):
            self.done = True
        elif key == "c":
            self.asking = self._marked()
        elif key in ("up", "down"):
            by = 1 if key == "down" else -1
            if self.run is None:
                self.place = max(0, self.place + by)
            else:
                self.rank, self.back = max(0, self.rank + by), 0
        elif key == "left" or (key == "l" and self.log):
            self._leave()
        elif key in ("right", "l") and not self.log:
            self._open()
        elif key in ("pgup", "pgdn") and self.log:
            self.back = max(0, self.back + (10 if key == "pgup" else -10))

    def _open(self) -> None:
        """Go from the overview to a sweep or a run, from a run to a log."""
        if self.run is not None:
            self.log, self.back = True, 0
        elif self._groups:
            row = self._groups[self.place][0]
            around = Path(row.dir).parent
            if self.sweep is None and row.sweep is not None and is_sweep(around):  # a fork of a point lies elsewhere
                self.sweep, self.place = around, 0
            else:
                self.run, self.rank = RunPaths(Path(row.dir)), 0

    def _leave(self) -> None:
        """Go back by one screen."""
        if self.log:
            self.log = False
        elif self.run is not None:
            self.run, self._detail, self.done = None, None, self.only_one and self.sweep is None
        elif self.only_one:
            self.done = True
        elif self.sweep is not None:
            self.sweep, self.place = None, 0

    def obey(self) -> bool:
        """Cancel the run that the last key named and note what came of it. Returns False when there is none."""
        run, self.ending = self.ending, None
        if run is not None:
            self.note = self.stop(run)
        return run is not None

    def _marked(self) -> RunPaths | None:
        """Return the run that a key is about. None, with a note, for a sweep and for a run that has ended."""
        if self.run is not None:
            run, active = self.run, self._detail is None or self._detail.summary.active
        elif not self._groups:
            return None
        else:
            row = self._groups[self.place][0]
            if self.sweep is None and row.sweep is not None:
                self.note = f"launcher cancel {row.sweep} --save ends all points of the sweep"
                return None
            run, active = RunPaths(Path(row.dir)), row.state in ("running", "pending")
        self.note = "" if active else "this run has ended"
        return run if active else None
