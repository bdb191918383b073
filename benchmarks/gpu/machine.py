"""The machine that the proof runs on: its GPUs and versions, or its CPUs in their place."""

from __future__ import annotations

import datetime
import os
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import launcher

NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"


class MissingError(Exception):
    """The machine lacks what a part needs; the message says what."""


@dataclass(frozen=True)
class Machine:
    """Where a part runs and how large it may be."""

    gpus: int
    """0: ranks are on CPUs and gloo stands for NCCL."""
    folder: Path
    """Room for runs and files; removed afterwards."""
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Where a single process computes."""
        return torch.device("cuda", 0) if self.gpus else torch.device("cpu")

    @property
    def ranks(self) -> int:
        """How many ranks a job has: one on each GPU; two on CPUs."""
        return self.gpus or 2

    def resources(self, ranks: int | None = None) -> dict[str, Any]:
        """The ``resources`` of a job of so many ranks."""
        ranks = ranks or self.ranks
        size = {"nodes": 1, "cpus_per_task": 1}
        return {**size, "gpus_per_node": ranks} if self.gpus else {**size, "tasks_per_node": ranks}

    def pick(self, on_gpu: Any, on_cpu: Any) -> Any:
        """A size for each."""
        return on_gpu if self.gpus else on_cpu


def find(folder: Path) -> Machine:
    """Look at this machine."""
    os.environ[NVML_CHECK] = "1"  # else the question opens CUDA here, and no child could be forked that uses it
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names, driver = _driver(gpus) if gpus else (["none: CPUs and gloo"], "none")
    facts = {
        "GPUs": ", ".join(sorted(set(names))),
        "number of GPUs": str(gpus),
        "driver": driver,
        "CUDA": torch.version.cuda or "none",
        "NCCL": ".".join(map(str, torch.cuda.nccl.version())) if gpus else "none",
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "kernel": platform.release(),
        "CPUs": str(len(os.sched_getaffinity(0))),
        "launcher": launcher.__version__,
        "date": datetime.date.today().isoformat(),
    }
    return Machine(gpus, folder, facts)


def _driver(gpus: int) -> tuple[list[str], str]:
    """Names and version as the driver's own library tells them: torch would open CUDA to find out."""
    import pynvml

    pynvml.nvmlInit()
    names = [pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(number)) for number in range(gpus)]
    return [str(name) for name in names], str(pynvml.nvmlSystemGetDriverVersion())
