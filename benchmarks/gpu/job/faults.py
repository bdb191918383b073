"""``faults.py FAULT BACKEND LIMIT_S``: two ranks that reduce at each step, until the last one does what FAULT says at step 5.

A collective fails after LIMIT_S. On one GPU both ranks use it: NCCL takes them for ranks of two hosts (NCCL_HOSTID), which NVIDIA does not
support.
"""

from __future__ import annotations

import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

import launcher

AT_STEP = 5


def nothing(device: torch.device) -> None:
    """Go on: whether this backend works here at all."""


def out_of_memory(device: torch.device) -> None:
    """Ask for more than any GPU has."""
    torch.empty(2**45, dtype=torch.uint8, device=device)


def failed_assertion(device: torch.device) -> None:
    """Look up a row that is not there: the kernel checks it."""
    torch.nn.Embedding(10, 4, device=device)(torch.tensor([99], device=device)).sum().item()


def illegal_address(device: torch.device) -> None:
    """Write far beyond a tensor."""
    import wild

    wild.write(torch.zeros(1, device=device))
    torch.cuda.synchronize()


def killed(device: torch.device) -> None:
    """End without a word, while the other ranks reduce."""
    os.kill(os.getpid(), 9)


def absent(device: torch.device) -> None:
    """Do not come to the reduction."""
    time.sleep(1000)


def own_device() -> torch.device:
    """Make this rank's GPU the current one; where there are too few, ranks share them."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if count < int(os.environ["LOCAL_WORLD_SIZE"]):
        os.environ["NCCL_HOSTID"] = os.environ["RANK"]
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % count)
    torch.cuda.set_device(device)
    return device


def main(fault: str, backend: str, limit_s: float) -> None:
    """Reduce at each step; the last rank fails."""
    device = own_device()
    run = launcher.attach()
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=limit_s))
    if fault == "illegal_address":
        import wild

        wild.ready(torch.zeros(1, device=device))
    last = dist.get_rank() == dist.get_world_size() - 1
    for step in run.steps(10 if fault == "nothing" else 1000):
        if last and step == AT_STEP:
            print("now", time.time(), flush=True)
            globals()[fault](device)
        value = torch.ones(1, device=device)
        dist.all_reduce(value)
        value.item()
        time.sleep(0.02)
        run.step()


main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
