"""Follows a run until it ends: events in words as they come, a progress bar where there is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from launcher.errors import RunCancelledError, RunFailedError
from launcher.run.events import read as read_events
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome, read_state

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["Follower", "finish", "follow", "say_event"]

_PERIOD_S = 0.25
_LAST_WORDS_S = 5.0
"""A leader that has ended may still be writing its outcome; NFS shows it late."""


def _numbers(values: Any) -> str:
    items = values.items() if isinstance(values, dict) else ()
    return ", ".join(f"{k} {v:.4g}" if isinstance(v, int | float) else f"{k} {v}" for k, v in items)


def _loss(event: dict[str, Any]) -> str:
    loss = event.get("loss")
    return f", loss {loss:.4g}" if isinstance(loss, int | float) else ""


def _names(values: Any) -> str:
    return ", ".join(str(v) for v in values) if isinstance(values, list) else str(values)


def _ready(e: dict[str, Any]) -> str:
    ranks = e.get("ranks") or []
    hosts = len({r.get("host") for r in ranks if isinstance(r, dict)})
    begun = f"from step {e['resume_step']:,}" if e.get("resume_step") else "from scratch"
    on = f" on {hosts} hosts" if hosts > 1 else ""
    return f"round {e.get('round', 0)}: {e.get('world_size')} ranks{on}, {begun}"


def _failure(e: dict[str, Any]) -> str:
    cause = e.get("cause") or {}
    return f"rank {e.get('rank')} on {e.get('host')} failed at step {e.get('step')}: {cause.get('text') or cause.get('kind')}"


_WORDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "attempt_started": lambda e: f"attempt {e.get('attempt')} on {e.get('host')}",
    "node_missing": lambda e: f"waiting for {_names(e.get('nodes'))} ({e.get('waited_s', 0):.0f} s so far)",
    "round_started": _ready,
    "first_step": lambda e: f"first step after {e.get('seconds', 0):.1f} s",
    "epoch": lambda e: f"epoch {e.get('epoch')}{_loss(e)}",
    "evaluated": lambda e: f"step {e.get('step'):,}: {_numbers(e.get('metrics'))}",
    "checkpoint_damaged": lambda e: f"damaged checkpoint {e.get('path')}: {e.get('why')}",
    "save_failed": lambda e: f"step {e.get('step')} could not be saved: {e.get('error')}",
    "worker_failed": _failure,
    "node_lost": lambda e: f"node {e.get('host')} is lost ({e.get('why')})",
    "hang": lambda e: f"nobody has progressed for {e.get('limit_s', 0):.0f} s",
    "signal": lambda e: f"{e.get('name')} on {e.get('host')}: {e.get('meaning')}",
    "stopped": lambda e: f"stopped at step {e.get('step')}, {e.get('lost_steps', 0)} steps lost",
    "decision": lambda e: f"{e.get('action')}: {e.get('reason')}",
    "excluded": lambda e: f"without {_names(e.get('hosts'))} from now on: {e.get('why')}",
    "requeued": lambda e: f"queued again ({e.get('how')})",
    "warning": lambda e: f"warning: {e.get('text')}",
}


def say_event(event: dict[str, Any]) -> str | None:
    """One event in words; None for those nobody follows. Events of other versions never raise."""
    word = _WORDS.get(str(event.get("type")))
    if word is None:
        return None
    try:
        return word(event)
    except (TypeError, ValueError, KeyError, AttributeError):
        return str(event.get("type"))


class Follower:
    """Prints what is new each time it is asked to look."""

    def __init__(self, paths: RunPaths, *, skip: int = 0) -> None:
        self._paths = paths
        self._seen = skip
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def look(self) -> None:
        """Print new events and redraw the bar."""
        events = read_events(self._paths.events)
        for event in events[self._seen :]:
            said = say_event(event)
            if said:
                self._print(f"{time.strftime('%H:%M:%S', time.localtime(event.get('t')))}  {said}")
        self._seen = len(events)
        if sys.stdout.isatty():
            self._draw(read_state(self._paths.state))

    def _print(self, line: str) -> None:
        if self._progress is not None:
            self._progress.console.print(line, markup=False, highlight=False)
        else:
            click.echo(line)

    def _draw(self, state: dict[str, Any]) -> None:
        step = state.get("step")
        if not isinstance(step, int):
            return
        if self._progress is None:
            self._progress = _bar()
            self._progress.start()
            self._task = self._progress.add_task("step", total=None, said="")
        rate = state.get("rate")
        said = [f"{rate:.1f} steps/s"] if isinstance(rate, int | float) and rate else []
        said += [_numbers(dict(list((state.get("metrics") or {}).items())[:2]))]
        if self._task is not None:
            self._progress.update(
                self._task, completed=step, total=state.get("total_steps"), said="  ".join(s for s in said if s)
            )

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _bar() -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[said]}"), TimeRemainingColumn(),
        transient=True,
    )  # fmt: skip


def follow(
    paths: RunPaths, alive: Callable[[], bool], *, skip: int = 0, on_interrupt: Callable[[], None] | None = None
) -> dict[str, Any]:
    """Print the run's progress until it has an outcome, and return that.

    ``alive`` says whether anything still works on the run; ``on_interrupt`` is called at each Ctrl-C (without it,
    KeyboardInterrupt goes through). Raises RunFailedError when everything is gone and no outcome was written.
    """
    follower = Follower(paths, skip=skip)
    gone_since: float | None = None
    try:
        while True:
            try:
                follower.look()
                outcome = read_outcome(paths.outcome)
                if outcome is not None:
                    follower.look()
                    return outcome
                gone_since = None if alive() else gone_since or time.monotonic()
                if gone_since is not None and time.monotonic() - gone_since > _LAST_WORDS_S:
                    raise RunFailedError(
                        f"{paths.id}: its processes are gone and left no outcome; launcher why {paths.id} and "
                        f"launcher logs {paths.id} may tell"
                    )
                time.sleep(_PERIOD_S)
            except KeyboardInterrupt:
                if on_interrupt is None:
                    raise
                on_interrupt()
    finally:
        follower.close()


def finish(paths: RunPaths, outcome: dict[str, Any]) -> None:
    """Say how the run ended. Raises RunFailedError or RunCancelledError, whose classes own the exit codes."""
    state, reason = str(outcome.get("state")), str(outcome.get("reason") or "")
    if state == "failed":
        raise RunFailedError(
            f"{paths.id} failed: {reason}\n  why      launcher why {paths.id}\n  run      {paths.root}"
        )
    if state == "cancelled":
        raise RunCancelledError(f"{paths.id} was cancelled: {reason}")
    metrics = _numbers(outcome.get("metrics"))
    click.echo(f"{paths.id} {state}{f': {metrics}' if metrics else ''}")
    click.echo(f"  run      {paths.root}")
