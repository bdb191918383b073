"""Asks NVIDIA's driver (NVML) about this node's visible GPUs: what they are, what they do, what is wrong with them."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.run.units import whole_number

_PCI = Path("/sys/bus/pci/devices")
_OCCUPIED = 0.5
"""A device of whose memory more than this share is in use before the run has begun is not free."""


class Gpus:
    """The visible GPUs, in the order of CUDA. Every call may hang or fail: a thread of its own makes them."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        self._events: Any = None
        self.problem: str | None = None
        """Why there are no figures, when GPUs were expected."""
        self.installed = True
        """The library that asks NVML is there; nodes may do without it."""
        try:
            import pynvml

            self._nvml = pynvml
            pynvml.nvmlInit()
            self._handles = self._visible()
        except Exception as error:  # a missing library, driver or device; NVML's errors have no common base to name
            self.installed = not isinstance(error, ImportError)
            self.problem = str(error)

    def _visible(self) -> list[Any]:
        """Return the handles of the devices in CUDA's order: those of the mask, which SLURM sets, or all.

        As CUDA reads the mask: a UUID may be shortened, and what follows an entry that is no device counts for nothing.
        """
        nvml, mask = self._nvml, os.environ.get("CUDA_VISIBLE_DEVICES")
        count = nvml.nvmlDeviceGetCount()
        if mask is None:
            return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        found: list[Any] = []
        for entry in (part.strip() for part in mask.split(",")):
            if (index := whole_number(entry)) is not None and index < count:
                found.append(nvml.nvmlDeviceGetHandleByIndex(index))
            elif entry.startswith(("GPU-", "MIG-")):
                found.append(self._by_uuid(entry, count))
            else:
                break
        return found

    def _by_uuid(self, uuid: str, count: int) -> Any:
        nvml = self._nvml
        for index in range(count if uuid.startswith("GPU-") else 0):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(uuid):
                return handle
        return nvml.nvmlDeviceGetHandleByUUID(uuid)

    def __len__(self) -> int:
        return len(self._handles)

    def use(self) -> list[dict[str, Any]]:
        """Return ``gpu_percent``, ``gpu_mem_bytes``, ``gpu_power_w`` and ``gpu_memory_errors`` of each device.

        Without what it does not report (a part of a device, MIG). Memory errors are those that could not be corrected.
        """
        nvml = self._nvml
        ask: dict[str, Callable[[Any], float]] = {
            "gpu_mem_bytes": lambda handle: int(nvml.nvmlDeviceGetMemoryInfo(handle).used),
            "gpu_percent": lambda handle: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            "gpu_power_w": lambda handle: round(nvml.nvmlDeviceGetPowerUsage(handle) / 1000, 1),
            "gpu_memory_errors": self._memory_errors,
        }
        return [self._figures(handle, ask) for handle in self._handles]

    def _figures(self, handle: Any, ask: dict[str, Callable[[Any], float]]) -> dict[str, Any]:
        figures = {name: _told(figure, handle) for name, figure in ask.items()}
        return {name: figure for name, figure in figures.items() if figure is not None}

    def describe(self) -> dict[str, Any]:
        """Return names, memory and driver, for the node's facts. What is not told is "" or 0.

        A device that was lost tells nothing, a part of a device (MIG) not everything, and one that shares the host's memory has none.
        """
        if not self._handles:
            return {}
        nvml = self._nvml
        version = _told(nvml.nvmlSystemGetCudaDriverVersion)
        return {
            "gpu_names": [_text(_told(nvml.nvmlDeviceGetName, h) or "") for h in self._handles],
            "gpu_mem_bytes": [int(getattr(_told(nvml.nvmlDeviceGetMemoryInfo, h), "total", 0)) for h in self._handles],
            "gpu_numa_nodes": [_numa_node(_told(nvml.nvmlDeviceGetPciInfo, h)) for h in self._handles],
            "driver": _text(_told(nvml.nvmlSystemGetDriverVersion) or "") or None,
            "cuda_driver": f"{version // 1000}.{version % 1000 // 10}" if version else None,
        }

    def faults(self) -> list[str]:
        """Return what is wrong with devices, as sentences; what a device does not report counts as fine.

        Uncorrected memory errors, memory that is to be repaired, and memory that is mostly in use before the run has begun: by
        what a dead job left behind.
        """
        return [
            fault
            for index, handle in enumerate(self._handles)
            for look in (self._lost, self._uncorrected, self._pages, self._rows, self._occupied)
            if (fault := _told(look, f"GPU {index}", handle))
        ]

    def _lost(self, gpu: str, handle: Any) -> str:
        """A GPU that has fallen off the bus answers nothing else either."""
        try:
            self._nvml.nvmlDeviceGetMemoryInfo(handle)
        except self._nvml.NVMLError as error:
            return (
                f"{gpu} is lost: it has fallen off the bus" if error.value == self._nvml.NVML_ERROR_GPU_IS_LOST else ""
            )
        return ""

    def _uncorrected(self, gpu: str, handle: Any) -> str:
        count = self._memory_errors(handle)
        return f"{gpu} has {count} uncorrected memory errors since the driver was loaded" if count else ""

    def _memory_errors(self, handle: Any) -> int:
        nvml = self._nvml
        kind, since = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        return int(nvml.nvmlDeviceGetTotalEccErrors(handle, kind, since))

    def _pages(self, gpu: str, handle: Any) -> str:
        pending = self._nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle)
        return f"{gpu} has pages waiting to be retired: it needs a reset" if pending else ""

    def _rows(self, gpu: str, handle: Any) -> str:
        """Since Ampere, memory is repaired by rows, and no pages are retired."""
        _, _, pending, failed = self._nvml.nvmlDeviceGetRemappedRows(handle)
        if failed:
            return f"{gpu} has a bad row of memory that could not be replaced: it needs a repair"
        return f"{gpu} has a bad row of memory waiting to be replaced: it needs a reset" if pending else ""

    def _occupied(self, gpu: str, handle: Any) -> str:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        if memory.used <= _OCCUPIED * memory.total:
            return ""
        used = f"{memory.used / 2**30:.1f} of {memory.total / 2**30:.1f} GiB"
        return f"{gpu} already has {used} in use before the run has begun"

    def watch_errors(self) -> None:
        """Have the driver keep the errors that `new_errors` returns, from now on. Some drivers and containers do not allow it."""
        nvml = self._nvml
        with contextlib.suppress(Exception):
            self._events = nvml.nvmlEventSetCreate()
        for handle in self._handles:
            with contextlib.suppress(Exception):  # a part of a device (MIG) reports none
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)

    def new_errors(self) -> list[tuple[int, int]]:
        """Return device number and Xid (`launcher.run.xids`) of each error since the last call; it does not wait."""
        numbers = {_address(handle): number for number, handle in enumerate(self._handles)}
        found: list[tuple[int, int]] = []
        with contextlib.suppress(Exception):  # of them the one that says that nothing has come
            while self._events is not None:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
                if (number := numbers.get(_address(event.device))) is not None:
                    found.append((number, int(event.eventData)))
        return found


def _told(ask: Callable[..., Any], *words: Any) -> Any:
    """Return what the driver answers, None where it does not."""
    with contextlib.suppress(Exception):
        return ask(*words)
    return None


def _numa_node(pci: Any) -> int:
    """Return the NUMA node of a device, -1 where the kernel does not know it: NVML says 00000000:1B:00.0, sysfs 0000:1b:00.0."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        domain, _, rest = _text(pci.busId).lower().partition(":")
        return int((_PCI / f"{domain[-4:]}:{rest}" / "numa_node").read_text())
    return -1


def _address(handle: Any) -> int | None:
    """Return what tells two handles apart: a GPU that has fallen off the bus does not answer to a question for its UUID."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
