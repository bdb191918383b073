"""Measures what this node and its workers use, once a second, in threads: a stuck GPU driver stops no heartbeat."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from launcher.node.agent.gpus import Gpus
from launcher.node.forkserver import proctable
from launcher.node.wire.messages import GpuError, RankUse

Pids = Callable[[], list[tuple[int, int, int]]]
"""Rank, local rank and process of every live worker now."""

_PERIOD_S = 1.0
_MOST_ERRORS = 20
"""Of GPUs that an agent reports: a program may cause one with every kernel."""


class Sampler:
    """Keeps the latest figures; reading them never waits."""

    def __init__(self, pids: Pids, *, gpus: bool) -> None:
        self._pids = pids
        self._errors: deque[GpuError] = deque()
        self._most_errors = _MOST_ERRORS
        self._gpus = gpus
        self._stop = threading.Event()
        self.ranks: list[RankUse] = []
        """What each live worker uses."""
        self._gpu_use: list[dict[str, Any]] = []
        self._before: dict[int, tuple[float, float]] = {}

    def start(self) -> None:
        """Start the threads; they are daemons and end with the process."""
        threading.Thread(target=self._loop, args=(self._look,), name="samples", daemon=True).start()
        if self._gpus:
            threading.Thread(target=self._look_at_gpus, name="gpu-samples", daemon=True).start()

    def stop(self) -> None:
        """End the threads, soon."""
        self._stop.set()

    def gpu_errors(self) -> list[GpuError]:
        """Return the errors that GPUs have reported since the last call."""
        return [self._errors.popleft() for _ in range(len(self._errors))]

    def _loop(self, look: Callable[[], None]) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(Exception):
                look()
            self._stop.wait(_PERIOD_S)

    def _look_at_gpus(self) -> None:
        gpus = Gpus()

        def look() -> None:
            for gpu, xid in gpus.new_errors()[: self._most_errors]:
                self._most_errors -= 1
                self._errors.append(GpuError(gpu=gpu, xid=xid))
            self._gpu_use = gpus.use()

        if len(gpus):
            gpus.watch_errors()
            self._loop(look)

    def _look(self) -> None:
        workers = self._pids()
        found = proctable.table() if workers else {}
        now = time.monotonic()
        by_session: dict[int, float] = {}
        for each in found.values():
            by_session[each.sid] = by_session.get(each.sid, 0.0) + each.cpu_s
        ranks = []
        for rank, local_rank, pid in workers:
            if (proc := found.get(pid)) is None:
                continue
            gpu = use[local_rank % len(use)] if (use := self._gpu_use) else {}  # as workers choose their device
            # data loaders count too: a worker's session is its own
            percent = self._percent(pid, by_session.get(pid, proc.cpu_s), now)
            ranks.append(RankUse(rank=rank, cpu_percent=percent, rss_bytes=proc.rss_bytes, state=proc.state, **gpu))
        self._before = {pid: seen for pid, seen in self._before.items() if pid in found}
        self.ranks = ranks

    def _percent(self, pid: int, cpu_s: float, now: float) -> float | None:
        before = self._before.get(pid)
        self._before[pid] = (cpu_s, now)
        if before is None or now <= before[1]:
            return None
        return round(max(0.0, 100 * (cpu_s - before[0]) / (now - before[1])), 1)
