"""The short all-reduce of the checks before the first round: one process per node, on the job's backend."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from typing import Any

_LIMIT = timedelta(seconds=70)
"""Nodes import torch at different speeds: the first to be ready waits for the last."""
_MEGABYTES = 16
_TIMES = 3


def main(fd: int) -> None:
    """Reduce a few times and write ``{"gb_s": speed}``, or ``{"error": text, "local": bool}``, and a newline to ``fd``.

    ``local`` says that this node failed by itself, before it had to do with another.
    """
    answer: dict[str, Any] = {}
    local = True
    try:
        device = _device()
        local = False
        answer["gb_s"] = _measure(device)
    except Exception as error:  # of any kind: the agent makes one sentence of it
        answer.update(error=f"{type(error).__name__}: {error}".splitlines()[0], local=local)
    os.write(fd, (json.dumps(answer) + "\n").encode())
    os._exit(0)  # other ranks may still be inside a collective: Python's normal end could wait for them


def _device() -> Any:
    """Return the device to reduce on; uses every GPU once, so that a broken one fails here and not in the first step."""
    import torch

    if os.environ["LAUNCHER_BACKEND"] != "nccl":
        return torch.device("cpu")
    asked, found = int(os.environ["LAUNCHER_GPUS_PER_NODE"]), torch.cuda.device_count()
    if found < asked:
        raise RuntimeError(f"torch sees {found} of {asked} GPUs")
    for index in reversed(range(max(1, asked))):
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
        torch.ones(1, device=device).sum().item()
    return device


def _measure(device: Any) -> float:
    """Return the gigabytes per second each link carried (bus bandwidth: 2(n-1)/n of the size in the time), the best of a few."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(os.environ["LAUNCHER_BACKEND"], timeout=_LIMIT)
    size = dist.get_world_size()
    data = torch.ones(_MEGABYTES * 2**18, device=device)
    best = 0.0
    for _ in range(_TIMES):
        data.fill_(1.0)
        begun = time.perf_counter()
        dist.all_reduce(data)
        value = float(data[-1].item())
        taken = time.perf_counter() - begun
        if value != size:
            raise ArithmeticError(f"the test all-reduce gave {value} instead of {size}")
        best = max(best, 2 * (size - 1) / size * _MEGABYTES * 2**20 / 1e9 / taken)
    return round(best, 3)
