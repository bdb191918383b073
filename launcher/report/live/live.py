"""The live view: which screen is shown, what keys do; the terminal itself is `launcher.cli.watch`'s."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rich.text import Text

from launcher.report.diagnosis.traces import tail
from launcher.report.live.feed import Detail, Feed
from launcher.report.live.screen import detail_screen, folded, log_screen, overview_screen, sorted_groups
from launcher.report.model.history import as_list
from launcher.report.text.listing import Row
from launcher.run.paths import RunPaths

__all__ = ["View"]

BACK = ("left", "esc", "backspace", "h")


@dataclass
class View:
    """The state of the live view. ``stop`` saves and ends a run and says in one line what came of it."""

    feed: Feed
    stop: Callable[[RunPaths], str]
    run: RunPaths | None = None
    sweep: str | None = None
    """Its points are shown, not all runs."""
    only_one: bool = False
    """Begun with a RUN or a sweep: going back leaves."""
    place: int = 0
    """The marked line of the overview."""
    rank: int = 0
    """The marked rank's place in the table."""
    log: bool = False
    back: int = 0
    """Lines above the log's end."""
    asking: RunPaths | None = None
    ending: RunPaths | None = None
    """To be ended once the screen says so: it may take SLURM some seconds."""
    note: str = ""
    done: bool = False
    _groups: list[list[Row]] = field(default_factory=list)
    _detail: Detail | None = None

    def render(self, width: int, height: int, now: float) -> list[Text]:
        """The screen as it is now: exactly ``height`` lines."""
        note = f"Save and end {self.asking.id}? y n" if self.asking else self.note
        if self.run is None:
            self._groups = sorted_groups(self.feed.overview(now, sweep=self.sweep))
            self.place = min(self.place, max(0, len(self._groups) - 1))
            hidden = self.feed.hidden
            return overview_screen(self._groups, self.place, width, height, now, note, hidden, sweep=self.sweep)
        self._detail = self.feed.detail(self.run, now)
        self.rank = min(self.rank, max(0, len(self._detail.summary.ranks) - 1))
        if self.log:
            title, log = self._log()
            lines = folded(log, width)
            self.back = min(self.back, max(0, len(lines) - height + 2))
            return log_screen(title, lines, self.back, width, height, note)
        return detail_screen(self._detail, self.rank, width, height, self._detail.now, note)

    def _log(self) -> tuple[str, list[str]]:
        """Title and lines of the marked rank's newest log."""
        detail = self._detail
        if detail is None or self.run is None:
            return "", []
        s, number = detail.summary, 0
        if s.ranks:
            number = s.ranks[self.rank].get("rank", self.rank)
        begun = detail.history.last("round_started") or {}
        attempt = begun.get("attempt", s.attempt) or 0
        path = self.run.rank_log(attempt, begun.get("round") or 0, number if isinstance(number, int) else 0)
        ranks = len(as_list(begun.get("ranks"))) or s.world_size or 1
        title = f"rank {number} of {ranks}, attempt {attempt}, round {begun.get('round') or 0}   {path}"
        return title, tail(path)

    def press(self, key: str) -> None:
        """One key."""
        self.note = ""
        if self.asking is not None:
            run, self.asking = self.asking, None
            if key == "y":
                self.ending, self.note = run, f"ending {run.id} ..."
            return
        if key in ("q", "ctrl-c"):
            self.done = True
        elif key == "c":
            self.asking = self._marked()
        elif self.run is None:
            self._press_overview(key)
        elif self.log:
            self._press_log(key)
        else:
            self._press_detail(key)

    def obey(self) -> bool:
        """Do what the last key ordered; whether there was anything. What came of it is the note."""
        run, self.ending = self.ending, None
        if run is not None:
            self.note = self.stop(run)
        return run is not None

    def _marked(self) -> RunPaths | None:
        """The run that a key is about; None for a sweep, and for runs that are over."""
        if self.run is not None:
            over = self._detail is not None and not self._detail.summary.active
            self.note = "this run is over" if over else ""
            return None if over else self.run
        if not self._groups:
            return None
        group = self._groups[self.place]
        if group[0].sweep is not None and self.sweep is None:
            self.note = f"launcher cancel {group[0].sweep} --save ends all points of a sweep"
            return None
        if group[0].state not in ("running", "pending"):
            self.note = "this run is over"
            return None
        return _paths(group[0])

    def _press_overview(self, key: str) -> None:
        if key in ("up", "k"):
            self.place = max(0, self.place - 1)
        elif key in ("down", "j"):
            self.place += 1
        elif key in ("enter", "right", "l") and self._groups:
            group = self._groups[self.place]
            if group[0].sweep is not None and self.sweep is None:
                self.sweep, self.place = group[0].sweep, 0
            else:
                self.run, self.rank, self.log, self.back = _paths(group[0]), 0, False, 0
        elif key in BACK and self.sweep is not None:
            self.done = self.only_one
            self.sweep, self.place = None if not self.only_one else self.sweep, 0

    def _press_detail(self, key: str) -> None:
        if key in ("up", "k"):
            self.rank = max(0, self.rank - 1)
        elif key in ("down", "j"):
            self.rank += 1
        elif key in ("l", "enter", "right"):
            self.log, self.back = True, 0
        elif key in BACK:
            self.run, self._detail, self.done = None, None, self.only_one and self.sweep is None

    def _press_log(self, key: str) -> None:
        if key in ("up", "k"):
            self.rank, self.back = max(0, self.rank - 1), 0
        elif key in ("down", "j"):
            self.rank, self.back = self.rank + 1, 0
        elif key == "pgup":
            self.back += 10
        elif key == "pgdn":
            self.back = max(0, self.back - 10)
        elif key in (*BACK, "l"):
            self.log = False


def _paths(row: Row) -> RunPaths:
    from pathlib import Path

    return RunPaths(Path(row.dir))
