"""Keep the device busy for some seconds."""

from __future__ import annotations

import time
from typing import Any

import torch


def main(worker: Any, *, seconds: float) -> None:
    """Multiply matrices; 2 GiB are in use on a GPU."""
    on_gpu = worker.device.type == "cuda"
    held = torch.zeros(2**29 if on_gpu else 1, device=worker.device)
    a = torch.randn(8192 if on_gpu else 256, 8192 if on_gpu else 256, device=worker.device)
    until = time.monotonic() + seconds
    for _ in worker.steps():
        for _ in range(10):
            a = torch.nn.functional.normalize(a @ a)
        worker.step(sum=a[0, 0] + held[0])
        if time.monotonic() > until:
            break
