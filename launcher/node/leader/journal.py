"""Writes the run's history: events, metrics, samples and state.json. One thread writes, in order; nobody waits for it.

A full disk stops nothing: lines that could not be written are kept, and writing them is retried. A file that cannot be written (a bad
block, a lost storage target) holds back its own lines alone. A leader that stood still and
whose claim is over writes nothing more.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.node.checkpoints import claims
from launcher.node.checkpoints.claims import Claim
from launcher.run import clock, events
from launcher.run.files import append_line
from launcher.run.paths import RunPaths
from launcher.run.state import write_state

_RETRY_S = 2.0
_TOLD_AGAIN = ("started", "preempted")
"""Kinds of notifications that a later attempt looks for. No others are written: an event after the outcome would make the run
look as if it had begun again."""
_KEEP = 100_000
"""Lines of a file that are kept while it cannot be written."""


class HistoryWriter:
    """Writes the history of an attempt, for the leader that holds ``claim``. ``threaded=False`` writes at once (tests)."""

    def __init__(
        self, paths: RunPaths, claim: Claim, *, threaded: bool = True, heard: Callable[[events.Event], None]
    ) -> None:
        self.paths = paths
        self.claim = claim
        self.round: int | None = None
        self.refused: str | None = None
        """Why the last line could not be written, or None."""
        self._heard = heard
        self._over = False
        self._backlog: dict[str, deque[dict[str, Any]]] = {
            path.name: deque(maxlen=_KEEP) for path in (paths.events, paths.metrics, paths.samples)
        }
        """By name of a file: lines for it."""
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="history", daemon=True) if threaded else None
        if self._thread is not None:
            self._thread.start()

    def event(self, type_: str, **values: Any) -> None:
        """Write one event. Raises TypeError for a type or a key that no event has."""
        value = events.event(type_, attempt=self.claim.attempt, round_=self.round, **values)
        self._heard(value)
        self._append(self.paths.events, value.raw)

    def warn(self, text: str, rank: int | None = None) -> None:
        """Write a warning."""
        self.event("warning", text=text, rank=rank)

    def notified(self, kind: str) -> None:
        """Write that a notification of this kind has been delivered."""
        if kind in _TOLD_AGAIN:
            self.event("notified", kind=kind)

    def follow(self, paths: RunPaths) -> None:
        """Write all that is not written yet to the new place of the folder, which was moved."""
        self._do(lambda: setattr(self, "paths", paths))

    def metrics(self, step: int, epoch: int | None, metrics: dict[str, float]) -> None:
        """Write metrics of one step. JSON holds no NaN and no infinities: they become the strings nan, inf and -inf."""
        plain = {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in metrics.items()}
        self._note(self.paths.metrics, step=step, epoch=epoch, metrics=plain)

    def samples(self, ranks: list[dict[str, Any]]) -> None:
        """Write what every rank uses."""
        self._note(self.paths.samples, ranks=ranks)

    def state(self, state: dict[str, Any]) -> None:
        """Replace state.json."""

        def write() -> None:
            if self._is_over():
                return
            try:
                write_state(self.paths.state, state)
            except OSError as error:
                self.refused = f"{self.paths.state.name}: {error.strerror or error}"

        self._do(write)

    def flush(self) -> None:
        """Wait until everything so far has been written, or refused (at most ten seconds)."""
        done = threading.Event()
        self._do(done.set)
        done.wait(10)

    def close(self) -> None:
        """Write what is left; waits for it (at most ten seconds on a disk that refuses)."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout=30)
        deadline = time.monotonic() + 10
        while self._owes and time.monotonic() < deadline:
            self._drain()
            if self._owes:
                time.sleep(0.5)

    def abandon(self) -> None:
        """Let the writing thread end when it has written what it has; never waits."""
        if self._thread is not None:
            self._queue.put(None)

    def _do(self, job: Callable[[], None]) -> None:
        if self._thread is None:
            job()
        else:
            self._queue.put(job)

    def _write(self) -> None:
        while True:
            try:
                job = self._queue.get(timeout=_RETRY_S if self._owes else None)
            except queue.Empty:
                self._drain()
                continue
            if job is None:
                return
            job()

    def _is_over(self) -> bool:
        self._over = self._over or claims.is_over(self.paths, self.claim)
        return self._over

    def _note(self, path: Path, **values: Any) -> None:
        self._append(path, {"t": round(clock.now(), 3), "attempt": self.claim.attempt, "round": self.round, **values})

    def _append(self, path: Path, line: dict[str, Any]) -> None:
        def append() -> None:
            self._backlog[path.name].append(line)
            self._drain()

        self._do(append)

    @property
    def _owes(self) -> bool:
        return any(self._backlog.values())

    def _drain(self) -> None:
        refused = [self._drain_one(name, lines) for name, lines in self._backlog.items()]
        self.refused = next(filter(None, refused), None)

    def _drain_one(self, name: str, lines: deque[dict[str, Any]]) -> str | None:
        """Write the lines of one file; return why the first of those that are left could not be written."""
        durable = name == self.paths.events.name
        while lines:
            try:
                if not (self._is_over() if durable else self._over):  # metrics are many: no look for each
                    append_line(self.paths.root / name, lines[0], durable=durable)
            except OSError as error:
                return f"{name}: {error.strerror or error}"
            lines.popleft()
        return None
