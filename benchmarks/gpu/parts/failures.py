"""Failures: what `launcher why` says of each, and how soon a round ends although the other ranks wait in NCCL.

absent: rank 1 never comes to a collective, and the launcher's limit ends the round. timed_out: the same, and the collective's own time-out does.
"""

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
    "timed_out": r"Rank 1 .*did not take part in a collective|Rank 0 .*gave up waiting",
    "out_of_memory": r"Rank 1 .*ran out of GPU memory",
    "failed_assertion": r"Rank 1 .*failed an assertion in a CUDA kernel",
    "illegal_address": r"Rank 1 .*accessed illegal memory in a CUDA kernel",
}
"""What is done to the last of two ranks, and the sentence for it."""
ACT = {"timed_out": "absent"}
"""The function of faults.py, where it has another name."""
SOON_S = {"absent": 40.0, "timed_out": 40.0}
"""Of the others 10 s: nobody waits for a time-out."""
LIMIT_S = 15.0
"""Of the collective that times out: NCCL's watchdog ends the rank that waits. Elsewhere the launcher sees the hang long before."""
AT_ONCE = 3


def run(machine: Machine) -> Iterator[Figure]:
    """Two ranks, on two GPUs or on one; each fault in a run of its own."""
    faults = list(EXPECTED) if machine.gpus else ["killed", "absent", "timed_out"]
    backend = "nccl" if machine.gpus else "gloo"
    if machine.gpus < 2:
        failed = _refused(machine, backend)
        how, backend = (f"{backend}, ranks share a device", backend) if not failed else ("gloo", "gloo")
        note = "NCCL_HOSTID differs: not supported by NVIDIA; for correctness alone" if machine.gpus else ""
        yield Figure("two ranks communicate by", how, note=failed or note)
    if machine.gpus and importlib.util.find_spec("triton") is None:
        faults.remove("illegal_address")
        yield Figure("illegal_address", "skipped", note="Triton is not installed")
    with ThreadPoolExecutor(machine.pick(AT_ONCE, 1)) as pool:
        told = pool.map(lambda name: _told(machine, name, backend), faults)
        for fault, (said, seconds) in zip(faults, told, strict=True):
            limit_s = SOON_S.get(fault, 10.0)
            yield holds(f"{fault}: why names it", bool(re.match(EXPECTED[fault], said)), said)
            yield at_most(f"{fault}: the run has ended after", seconds, "s", limit_s, counts=machine.gpus > 0)


def _job(machine: Machine, fault: str, backend: str) -> dict[str, Any]:
    timed = fault == "timed_out"
    limit_s = LIMIT_S if timed else 600.0
    return {
        "script": "faults.py",
        "args": [ACT.get(fault, fault), backend, limit_s],
        "code": {"dir": str(JOBS)},
        "resources": {"nodes": 1, "gpus_per_node": min(machine.gpus, 2), "tasks_per_node": 2, "cpus_per_task": 1},
        # Of the launcher's own checks: the script opens its own group.
        "distributed": {"backend": "gloo" if machine.gpus < 2 else "nccl"},
        "checkpoint": {"enabled": False},
        "restart": {"max_restarts": 0, "hang_floor_s": 120 if timed else machine.pick(15, 4)},
    }


def _refused(machine: Machine, backend: str) -> str:
    """Return why two ranks cannot communicate so; "" where they can."""
    one = Run(machine.folder, "nothing", _job(machine, "nothing", backend))
    try:
        one.end()
        return ""
    except RuntimeError:
        return one.why()
    finally:
        one.discard()


def _told(machine: Machine, fault: str, backend: str) -> tuple[str, float]:
    one = Run(machine.folder, fault, _job(machine, fault, backend))
    try:
        one.end("failed")
        log = one.paths.rank_log(0, 0, 1).read_text()
        began = float(re.search(r"^now (\S+)", log, re.MULTILINE)[1])  # type: ignore[index]
        return one.why(), one.events("ended")[-1]["t"] - began
    finally:
        one.discard()
