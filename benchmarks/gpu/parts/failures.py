"""Failures: what `launcher why` says of each, and how soon a round ends although the other ranks wait in NCCL."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from figures import Figure, at_most, holds
from machine import Machine
from runs import JOBS, Run

EXPECTED = {
    "killed": r"Rank 1 .*was killed from outside \(SIGKILL\)",
    "absent": r"Rank 1 .*(did not take part in a collective|hung)",
    "out_of_memory": r"Rank 1 .*ran out of GPU memory",
    "failed_assertion": r"Rank 1 .*failed an assertion in a CUDA kernel",
    "illegal_address": r"Rank 1 .*accessed illegal memory in a CUDA kernel",
}
"""What is done to the last of two ranks, and the sentence for it."""
SOON_S = {"absent": 40.0}
"""Of the others 10 s: nobody waits for a time-out."""
AT_ONCE = 3


def run(machine: Machine) -> Iterator[Figure]:
    """Two ranks, on two GPUs or on one; each fault in a run of its own."""
    faults = list(EXPECTED) if machine.gpus else ["killed", "absent"]
    if machine.gpus == 1:
        yield Figure(
            "two ranks share the GPU", "NCCL_HOSTID differs", note="not supported by NVIDIA; for correctness alone"
        )
    if machine.gpus and importlib.util.find_spec("triton") is None:
        faults.remove("illegal_address")
    with ThreadPoolExecutor(machine.pick(AT_ONCE, 1)) as pool:
        for fault, (said, seconds) in zip(faults, pool.map(lambda name: _told(machine, name), faults), strict=True):
            limit_s = SOON_S.get(fault, 10.0)
            yield holds(f"{fault}: why names it", bool(re.match(EXPECTED[fault], said)), said)
            yield at_most(f"{fault}: the run has ended after", seconds, "s", limit_s, counts=machine.gpus > 0)


def _told(machine: Machine, fault: str) -> tuple[str, float]:
    job: dict[str, Any] = {
        "script": "faults.py",
        "args": [fault],
        "code": {"dir": str(JOBS)},
        "resources": {"nodes": 1, "gpus_per_node": min(machine.gpus, 2), "tasks_per_node": 2, "cpus_per_task": 1},
        "distributed": {
            "backend": "gloo" if machine.gpus < 2 else "nccl"
        },  # of the launcher's own checks: the script opens NCCL
        "checkpoint": {"enabled": False},
        "restart": {"max_restarts": 0, "hang_floor_s": machine.pick(15, 4)},
    }
    one = Run(machine.folder, fault, job)
    try:
        one.end("failed")
        log = one.paths.rank_log(0, 0, 1).read_text()
        began = float(re.search(r"^now (\S+)", log, re.MULTILINE)[1])  # type: ignore[index]
        return one.why(), one.events("ended")[-1]["t"] - began
    finally:
        one.discard()
