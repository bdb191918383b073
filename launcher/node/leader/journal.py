"""The leader's pen: events, metrics, samples and the picture of now. One thread writes, in order; nobody waits for it.

A full disk stops nothing here: what could not be written is kept and tried again. An attempt that is over, whose leader has
stood still meanwhile, writes nothing more.
"""

from __future__ import annotations

import json
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.node.checkpoints import fence
from launcher.run import clock, events
from launcher.run.files import append_line
from launcher.run.paths import RunPaths
from launcher.run.state import write_state

_RETRY_S = 2.0
_TOLD_AGAIN = ("started", "preempted")
"""News that a later attempt looks for; an event behind the outcome would make the run look as if it had begun again."""
_KEEP = 100_000
"""Lines kept while the disk refuses."""


class HistoryWriter:
    """Writes one attempt's history. ``threaded=False`` writes at once (tests)."""

    def __init__(
        self, paths: RunPaths, attempt: int, *, threaded: bool = True, heard: Callable[[events.Event], None]
    ) -> None:
        self.paths = paths
        self.attempt = attempt
        self.round: int | None = None
        self.refused: str | None = None
        """Why the disk refused the last line, or None."""
        self._heard = heard
        self._over = False
        self._backlog: deque[tuple[Path, dict[str, Any], bool]] = deque(maxlen=_KEEP)
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="history", daemon=True) if threaded else None
        if self._thread is not None:
            self._thread.start()

    def event(self, type_: str, **values: Any) -> events.Event:
        """Tell one event. Raises TypeError for a type or a key that no event has."""
        value = events.event(type_, attempt=self.attempt, round_=self.round, **values)
        self._heard(value)
        self._do(lambda: self._append(self.paths.events, value.raw, True))
        return value

    def warn(self, text: str) -> None:
        """Tell a warning."""
        self.event("warning", text=text)

    def notified(self, kind: str) -> None:
        """News of this kind has been delivered."""
        if kind in _TOLD_AGAIN:
            self.event("notified", kind=kind)

    def follow(self, paths: RunPaths) -> None:
        """The folder was moved: all that is still to be written goes to its new place."""

        def move() -> None:
            old, self.paths = self.paths.root, paths
            moved = [(paths.root / path.relative_to(old), value, durable) for path, value, durable in self._backlog]
            self._backlog.clear()
            self._backlog.extend(moved)

        self._do(move)

    def metrics(self, step: int | None, epoch: int | None, metrics: dict[str, Any]) -> None:
        """Note metrics of one step."""
        line = {"t": round(clock.now(), 3), "attempt": self.attempt, "round": self.round, "step": step, "epoch": epoch}
        self._do(lambda: self._append(self.paths.metrics, {**line, "metrics": plain_numbers(metrics)}, False))

    def samples(self, ranks: list[dict[str, Any]]) -> None:
        """Note everybody's resource use."""
        line = {"t": round(clock.now(), 3), "attempt": self.attempt, "round": self.round, "ranks": ranks}
        self._do(lambda: self._append(self.paths.samples, line, False))

    def state(self, state: dict[str, Any]) -> None:
        """Replace the picture of now."""
        self._do(lambda: self._picture(state))

    def flush(self) -> None:
        """Wait until everything told so far has been written, or refused (at most ten seconds)."""
        if self._thread is not None:
            done = threading.Event()
            self._queue.put(done.set)
            done.wait(10)

    def close(self) -> None:
        """Write what is left; waits for it (at most ten seconds on a disk that refuses)."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout=30)
        deadline = time.monotonic() + 10
        while self._backlog and time.monotonic() < deadline:
            self._drain()
            if self._backlog:
                time.sleep(0.5)

    def _do(self, job: Callable[[], None]) -> None:
        if self._thread is None:
            job()
        else:
            self._queue.put(job)

    def _write(self) -> None:
        while True:
            try:
                job = self._queue.get(timeout=_RETRY_S if self._backlog else None)
            except queue.Empty:
                self._drain()
                continue
            if job is None:
                return
            job()

    def _is_over(self) -> bool:
        self._over = self._over or fence.is_over(self.paths, self.attempt)
        return self._over

    def _append(self, path: Path, value: dict[str, Any], durable: bool) -> None:
        self._backlog.append((path, value, durable))
        self._drain()

    def _drain(self) -> None:
        while self._backlog:
            path, value, durable = self._backlog[0]
            try:
                if not (self._is_over() if durable else self._over):  # metrics are many: no look for each
                    append_line(path, value, durable=durable)
            except OSError as error:
                self.refused = f"{path.name}: {error.strerror or error}"
                return
            self._backlog.popleft()
        self.refused = None

    def _picture(self, state: dict[str, Any]) -> None:
        if self._is_over():
            return
        try:
            write_state(self.paths.state, json.loads(json.dumps(state, default=str)))
        except OSError as error:
            self.refused = f"{self.paths.state.name}: {error.strerror or error}"


def plain_numbers(metrics: dict[str, Any]) -> dict[str, Any]:
    """Metrics as JSON can hold them: NaN and infinities become the strings nan, inf and -inf."""
    out: dict[str, Any] = {}
    for name, value in metrics.items():
        bad = isinstance(value, float) and not math.isfinite(value)
        out[str(name)] = str(value) if bad else value
    return out
