"""Measures what this node and its workers use, once a second, in threads: a stuck GPU driver stops no heartbeat."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil

from launcher.node.forkserver import proctable
from launcher.node.wire.messages import RankUse

Pids = Callable[[], list[tuple[int, int, int]]]
"""Rank, local rank and process of every live worker now."""

_PERIOD_S = 1.0
_OCCUPIED = 0.5
"""A device of whose memory more than this share is in use before the run has begun is not free."""


class Gpus:
    """Asks NVML about the visible GPUs. Every call may hang or fail, so a thread of its own makes them."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self.problem: str | None = None
        """Why there are no figures, when GPUs were expected."""
        self.installed = True
        """The library that asks NVML is there; nodes may do without it."""
        try:
            import pynvml

            self._nvml: Any = pynvml
            pynvml.nvmlInit()
            self._handles = self._visible()
        except Exception as error:  # a missing library, driver or device; NVML's errors have no common base to name
            self.installed = not isinstance(error, ImportError)
            self.problem = str(error)

    def _visible(self) -> list[Any]:
        """Return the handles of the devices in CUDA's order: those of the mask, which SLURM sets, or all."""
        nvml, mask = self._nvml, os.environ.get("CUDA_VISIBLE_DEVICES")
        if mask is None:
            return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        entries = [entry.strip() for entry in mask.split(",") if entry.strip()]
        return [
            nvml.nvmlDeviceGetHandleByIndex(int(entry)) if entry.isdigit() else nvml.nvmlDeviceGetHandleByUUID(entry)
            for entry in entries
        ]

    def __len__(self) -> int:
        return len(self._handles)

    def use(self) -> list[dict[str, Any]]:
        """Return ``gpu_percent`` and ``gpu_mem_bytes`` of each device, without those that it does not report (MIG)."""
        found = []
        for handle in self._handles:
            figures: dict[str, Any] = {}
            with contextlib.suppress(Exception):
                figures["gpu_mem_bytes"] = int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used)
                figures["gpu_percent"] = int(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            found.append(figures)
        return found

    def describe(self) -> dict[str, Any]:
        """Return names, memory and driver, for the node's facts."""
        if not self._handles:
            return {}
        nvml = self._nvml
        names = [nvml.nvmlDeviceGetName(h) for h in self._handles]
        driver, version = nvml.nvmlSystemGetDriverVersion(), nvml.nvmlSystemGetCudaDriverVersion()
        return {
            "gpu_names": [n.decode() if isinstance(n, bytes) else n for n in names],
            "gpu_mem_bytes": [int(nvml.nvmlDeviceGetMemoryInfo(h).total) for h in self._handles],
            "driver": driver.decode() if isinstance(driver, bytes) else driver,
            "cuda_driver": f"{version // 1000}.{version % 1000 // 10}",
        }

    def faults(self) -> list[str]:
        """Return what is wrong with devices, as sentences; what a device does not report counts as fine.

        Uncorrected memory errors, pending page retirement, and memory that is mostly in use before the run has begun: by what
        a dead job left behind.
        """
        found: list[str] = []
        for index, handle in enumerate(self._handles):
            with contextlib.suppress(Exception):
                nvml = self._nvml
                count = nvml.nvmlDeviceGetTotalEccErrors(
                    handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                )
                if count:
                    found.append(f"GPU {index} has {count} uncorrected memory errors since the driver was loaded")
                if nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle):
                    found.append(f"GPU {index} has pages waiting to be retired: it needs a reset")
            with contextlib.suppress(Exception):
                memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
                if memory.used > _OCCUPIED * memory.total:
                    used = f"{memory.used / 2**30:.1f} of {memory.total / 2**30:.1f} GiB"
                    found.append(f"GPU {index} already has {used} in use before the run has begun")
        return found


class Sampler:
    """Keeps the latest figures; reading them never waits."""

    def __init__(self, pids: Pids, *, gpus: bool) -> None:
        self._pids = pids
        self._gpus = gpus
        self._stop = threading.Event()
        self._node: dict[str, Any] = {}
        self._ranks: list[RankUse] = []
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

    def latest(self) -> dict[str, Any]:
        """Return what ``alive`` carries."""
        return {**self._node, "ranks": self._ranks}

    def _loop(self, look: Callable[[], None]) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(Exception):
                look()
            self._stop.wait(_PERIOD_S)

    def _look_at_gpus(self) -> None:
        gpus = Gpus()

        def look() -> None:
            self._gpu_use = gpus.use()

        if len(gpus):
            self._loop(look)

    def _look(self) -> None:
        self._node = {"cpu_percent": psutil.cpu_percent(), "mem_bytes": int(psutil.virtual_memory().used)}
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
        self._ranks = ranks

    def _percent(self, pid: int, cpu_s: float, now: float) -> float | None:
        before = self._before.get(pid)
        self._before[pid] = (cpu_s, now)
        if before is None or now <= before[1]:
            return None
        return round(max(0.0, 100 * (cpu_s - before[0]) / (now - before[1])), 1)
