"""Follow a run until it ends: print its events as they come, with a progress bar on a terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from launcher.cli._terminal import harmless, real_output
from launcher.errors import RunCancelledError, RunFailedError, SiteError
from launcher.report.formats import metric_list
from launcher.report.model.history import EventFile, as_dict
from launcher.report.text.words import words
from launcher.run import events as ev
from launcher.run.paths import RunPaths
from launcher.run.state import read_end, read_outcome, read_state
from launcher.submission.liveness import ASK_EVERY_S, ended, locate

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PERIOD_S = 0.25
_LAST_WORDS_S = 5.0
"""A leader that has ended may still be writing its outcome, and NFS shows it late."""


_QUIET = (ev.RunSubmitted, ev.NodeJoined, ev.Saved, ev.SaveStarted, ev.Agreed, ev.Notified, ev.AttemptEnded, ev.Ended, ev.RoundEnded,
          ev.PreflightDone, ev.StopRequested)  # fmt: skip
"""Events that are not printed: the progress bar and the last line show them."""


class _Follower:
    """Prints a run's new events at each look; on a terminal with a progress bar below them."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths, self._events = paths, EventFile(paths.events)
        self._seen = 0
        self._progress = _progress() if sys.stdout.isatty() else None
        self._task: TaskID | None = None

    def look(self) -> None:
        """Print new events and redraw the bar."""
        events = self._events.read()
        for event in events[self._seen :]:
            if not isinstance(event, _QUIET) and (said := words(event)):
                line = f"{time.strftime('%H:%M:%S', time.localtime(event.t))}  {said}"
                if self._task is None or self._progress is None:
                    click.echo(line)
                else:
                    self._progress.console.print(harmless(line), markup=False, highlight=False)
        self._seen = len(events)
        if self._progress is None:
            return
        state = read_state(self._paths.state)
        step, rate = state.get("step"), state.get("rate")
        if not isinstance(step, int):
            return
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task("step", total=None, said="")
        speed = f"{rate:.1f} steps/s" if isinstance(rate, int | float) and rate else ""
        said = "  ".join(filter(None, [speed, harmless(metric_list(as_dict(state.get("metrics")), 2))]))
        self._progress.update(self._task, completed=step, total=state.get("total_steps"), said=said)

    def close(self) -> None:
        """Remove the bar."""
        if self._progress is not None:
            self._progress.stop()


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[said]}", markup=False), TimeRemainingColumn(),
        transient=True, console=Console(file=real_output()),
    )  # fmt: skip


def follow_run(
    paths: RunPaths,
    alive: Callable[[], bool],
    *,
    before_look: Callable[[], None] = lambda: None,
    told: Callable[[], dict[str, Any] | None] = lambda: None,
) -> dict[str, Any]:
    """Print the run's progress until it has an outcome, and return the outcome; of an ended run without one, its history's last word.

    ``alive`` tells whether anything still works on the run; ``before_look`` is called four times a second. ``told``: the outcome, where
    it is known from elsewhere: NFS may show the file a minute late.
    Raises RunFailedError when all processes have ended and neither tells how the run did.
    """
    follower = _Follower(paths)
    gone_since: float | None = None
    try:
        while True:
            before_look()
            follower.look()
            if (outcome := read_outcome(paths.outcome) or told()) is not None:
                follower.look()
                return outcome
            gone_since = None if alive() else gone_since or time.monotonic()
            if gone_since is not None and time.monotonic() - gone_since > _LAST_WORDS_S:
                if (end := read_end(paths)) is not None:
                    return end
                if not paths.root.is_dir():
                    raise RunFailedError(f"{paths.id} has ended: its folder {paths.root} was deleted or moved")
                raise RunFailedError(
                    f"{paths.id}: its processes ended without writing an outcome; see launcher why {paths.id} "
                    f"and launcher logs {paths.id}"
                )
            time.sleep(_PERIOD_S)
    finally:
        follower.close()


def report_end(paths: RunPaths, outcome: dict[str, Any]) -> None:
    """Print how the run ended. Raises RunFailedError or RunCancelledError, which have the exit codes."""
    state, reason = str(outcome.get("state")), str(outcome.get("reason") or "")
    if state == "failed":
        raise RunFailedError(
            f"{paths.id} failed: {reason}\n  why      launcher why {paths.id}\n  run      {paths.root}"
        )
    if state == "cancelled":
        raise RunCancelledError(f"{paths.id} was cancelled: {reason}")
    # A history's last word has none.
    metrics = metric_list(outcome.get("metrics") or as_dict(read_state(paths.state).get("metrics")), None)
    click.echo(f"{paths.id} {state}{f': {metrics}' if metrics else ''}")
    click.echo(f"  run      {paths.root}")


def follow_points(name: str, points: Sequence[RunPaths]) -> None:
    """Print each point of the sweep ``name`` that ends, until all have. Raises RunFailedError when one did not complete.

    SLURM is asked about all of them at once, every twenty seconds; an end that a leader wrote is seen at once.
    """
    waiting, bad, asked = {paths.id: locate(paths) for paths in points}, list[str](), float("-inf")
    gone: dict[str, int] = {}  # how often in a row: a leader's last write may be on its way
    while waiting:
        time.sleep(_PERIOD_S * 4)
        if time.monotonic() - asked > ASK_EVERY_S:
            asked = time.monotonic()
            with contextlib.suppress(SiteError):
                gone = {run: gone.get(run, 0) + 1 for run in ended(waiting.values())}
        for run, where in list(waiting.items()):
            over = gone.get(run, 0) >= 2
            outcome = read_end(where.paths) if over else read_outcome(where.paths.outcome)
            if outcome is None and not over:
                continue
            state = str(outcome.get("state")) if outcome else "lost"
            bad += [state] if state != "completed" else []
            del waiting[run]
            click.echo(f"{time.strftime('%H:%M:%S')}  {run} {state} ({len(waiting)} to go)")
    if bad:
        failed = len(bad) - bad.count("cancelled")
        again = f"launcher resubmit --failed {name}" if failed else "launcher resubmit POINT"
        which = "those that failed" if failed else "one that was cancelled"
        raise RunFailedError(f"{len(bad)} of {len(points)} points did not complete; {again} continues {which}")
    click.echo(f"{name} completed: {len(points)} points")
