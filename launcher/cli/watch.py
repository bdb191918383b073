"""Watch runs live in the terminal."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from launcher.cli._options import complete_run, json_option
from launcher.cli._terminal import harmless, real_output
from launcher.frozen import field_values, frozen

if TYPE_CHECKING:
    from launcher.run.paths import RunPaths

_PERIOD_S = 1.0
_GONE_S = 5.0
"""A network file system may be away for a moment."""
_DUMB = ("dumb", "unknown", "")
"""Terminals that cannot move the cursor: they get what a pipe gets."""
_KEYS = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left", b"\x1bOA": "up", b"\x1bOB": "down",
    b"\x1bOC": "right", b"\x1bOD": "left", b"\x1b[5~": "pgup", b"\x1b[6~": "pgdn", b"\r": "enter", b"\n": "enter",
    b"\x7f": "backspace", b"\x08": "backspace", b"\x1b": "esc", b"\x03": "ctrl-c",
}  # fmt: skip
_ONE_KEY = re.compile(b"|".join(map(re.escape, sorted(_KEYS, key=len, reverse=True))) + b"|.", re.DOTALL)


@click.command()
@click.argument("run", required=False, shell_complete=complete_run)
@json_option(help="Print one JSON object per event of RUN. Without RUN: ls --json.")
def command(run: str | None, as_json: bool) -> None:
    """Watch all runs, or RUN: its progress, curves, ranks and events. RUN may be a sweep.

    Keys follow a log, or save and cancel a run. It works over ssh and in a terminal of 80x24.

    When the output is not a terminal, RUN's events are printed as they come; of a sweep, the ends of its points.
    docs/json.md lists the keys of --json.
    """
    from launcher.run.index import is_sweep, resolve
    from launcher.run.paths import RunPaths

    paths = RunPaths(resolve(run)) if run is not None else None
    sweep = paths.root if paths is not None and is_sweep(paths.root) else None
    seen = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in _DUMB
    if seen and not as_json:
        _live(None if sweep else paths, sweep)
    elif sweep is not None:
        _follow_sweep(sweep, as_json)
    elif paths is not None:
        _follow(paths, as_json)
    else:
        from launcher.cli.ls import command as ls

        click.get_current_context().invoke(ls, as_json=as_json)


def _live(paths: RunPaths | None, sweep: Path | None) -> None:
    from rich.console import Console, Group
    from rich.live import Live

    from launcher.report.live.feed import LiveFeed
    from launcher.report.live.screen import in_ascii
    from launcher.report.live.view import View

    view = View(LiveFeed(), _save_and_end, run=paths, sweep=sweep, only_one=bool(paths or sweep), gone_s=_GONE_S)
    console = Console(file=real_output())

    # The kernel's own console has a font of 256 characters; elsewhere the encoding tells.
    poor = os.environ.get("TERM") == "linux" or not console.encoding.lower().startswith("utf")

    def screen() -> Group:
        lines = view.render(console.width, console.height, time.time())
        for line in lines:
            line.plain = harmless(line.plain, "·")  # of the same length: colours keep their places
        return Group(*(in_ascii(lines) if poor else lines))

    try:
        with _keyboard() as read, Live(screen(), console=console, screen=True, auto_refresh=False) as live:
            while not view.done:
                for key in read(_PERIOD_S):
                    view.press(key)
                live.update(screen(), refresh=True)
                if view.obey():
                    live.update(screen(), refresh=True)
    except KeyboardInterrupt:
        return  # Ctrl-C leaves the view


@contextlib.contextmanager
def _keyboard() -> Iterator[Callable[[float], list[str]]]:
    """Read the keyboard key by key; restore the terminal at the end.

    Yields a function that returns the keys pressed within some seconds, at the first one.
    """
    import termios
    import tty

    fd = sys.stdin.fileno()
    before: list[Any] = termios.tcgetattr(fd)
    tty.setcbreak(fd)

    def read(timeout_s: float) -> list[str]:
        ready = select.select([fd], [], [], timeout_s)[0]
        return decode(os.read(fd, 256)) if ready else []

    try:
        yield read
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def decode(raw: bytes) -> list[str]:
    """Return the names of the keys in what a terminal sent."""
    found = _ONE_KEY.findall(raw)
    return [_KEYS.get(key) or key.decode("ascii", "replace") for key in found]


def _save_and_end(paths: RunPaths) -> str:
    """Stop the run as ``launcher cancel --save`` does; return one line that says what happened."""
    from launcher.errors import LauncherError
    from launcher.submission.cancel import cancel_run

    try:
        return cancel_run(paths, save=True).sentence
    except LauncherError as error:
        return str(error).replace("\n", " ")


@frozen
class Change:
    """A change of a run's state."""

    t: float
    """When that was seen."""
    run: str
    """The run's id, or a point's."""
    state: str
    """pending, running, completed, failed or cancelled."""
    reason: str
    """Why it is pending, or how it ended."""

    def as_json(self) -> str:
        """Return one line, like an event's."""
        from launcher.report.formats import json_line

        return json_line({"t": self.t, "type": "state", **field_values(self)})


class _Patience:
    """How long what is watched may be away: a network file system comes back within moments."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._seen = time.monotonic()

    def look(self, there: bool) -> bool:
        """Return ``there``. Raises RunGoneError when that was False for some seconds."""
        from launcher.errors import RunGoneError

        if there:
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > _GONE_S:
            paths = self._paths
            raise RunGoneError(f"{paths.id}: its folder {paths.root} was deleted or moved", paths.id)
        return there


def _follow(paths: RunPaths, as_json: bool) -> None:
    """Print events as sentences until the run has ended: for pipes and files.

    Raises RunGoneError when its folder goes away, RunDirError when its files cannot be read.
    """
    from launcher.errors import RunDirError
    from launcher.report import formats
    from launcher.report.model.hearing import Hearing, run_now
    from launcher.report.model.runs import needs_slurm, summary_of
    from launcher.report.model.summary import summarise_history
    from launcher.report.model.verdict import UNKNOWN
    from launcher.report.text.status import lines
    from launcher.report.text.words import words

    told, asked, patience, hearing = 0, float("-inf"), _Patience(paths), Hearing()
    known = time.monotonic()
    while True:
        now = time.time()
        patience.look(os.path.isdir(paths.root))
        history = hearing.read(paths)
        for event in history.events[told:]:
            said = words(event)
            as_text = f"{formats.time_of_day(event.t, now)}  {said}"
            click.echo(formats.json_line({**event.raw, "words": said}) if as_json else as_text)
        told = max(told, len(history.events))
        summary = summarise_history(history, None, now)
        if needs_slurm(summary, history, now) and time.monotonic() - asked > 30:
            summary, asked = summary_of(history, now), time.monotonic()
        if not summary.reason.startswith(UNKNOWN):
            known = time.monotonic()
        elif summary.active and time.monotonic() - known > _GONE_S:
            raise RunDirError(f"{paths.id}: {summary.reason[0].lower()}{summary.reason[1:]}")
        if not summary.active:
            end = Change(summary.ended or now, summary.run, summary.state, summary.reason)
            click.echo(end.as_json() if as_json else "\n".join(lines(summary, run_now(history, now), wrong=[])))
            return
        time.sleep(_PERIOD_S)


def _follow_sweep(sweep: Path, as_json: bool) -> None:
    """Print each point's state whenever it changes, until all have ended; then the sweep in one line. Raises RunGoneError as `_follow`."""
    from launcher.report import formats
    from launcher.report.live.feed import LISTING_EVERY_S, LiveFeed
    from launcher.report.text.listing import sweep_line
    from launcher.run.paths import RunPaths

    feed, told, patience = LiveFeed(), dict[str, str](), _Patience(RunPaths(sweep))
    while True:
        now = time.time()
        points = [row for group in feed.overview(now, sweep=sweep) for row in group]
        for row in points:
            if told.get(row.run) != row.state:
                told[row.run] = row.state
                bad = row.reason and row.state in ("failed", "cancelled")
                why = f": {formats.clean(row.reason, 200)}" if bad else ""
                as_text = f"{formats.time_of_day(now, now)}  {row.run} {row.state}{why}"
                click.echo(Change(now, row.run, row.state, row.reason).as_json() if as_json else as_text)
        there = patience.look(os.path.isdir(sweep) and (bool(points) or not told))
        if there and not any(row.state in ("running", "pending") for row in points):
            if not as_json:
                click.echo(f"{sweep.name}  {sweep_line(points)[1]}" if points else f"{sweep.name} has no points")
            return
        time.sleep(LISTING_EVERY_S)
