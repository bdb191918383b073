"""The fork server and CUDA: no context before the fork; time from a killed rank to the next step, by part, compared with ``spawn``."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from figures import Figure, holds
from machine import Machine
from runs import JOBS, Run

TIMES = {"forkserver": 5, "spawn": 2}
"""Restarts by start method."""


def run(machine: Machine) -> Iterator[Figure]:
    """Kill a rank some times; look at the fork server; take the start of a rank apart."""
    for method, often in TIMES.items():
        times = machine.pick(often, 1)
        one = Run(machine.folder, method, _job(machine, method))
        try:
            one.until_saved(1)
            if method == "forkserver":
                server = psutil.Process(one.pid(0)).ppid()
                yield holds(
                    "the fork server has no CUDA context", not has_context(server), "by NVML and its open devices"
                )
                if machine.gpus:
                    yield holds("its worker has one", has_context(one.pid(0)))
            parts = [_recovery(one, number) for number in range(times)]
            yield from _figures(method, parts)
        finally:
            one.discard()
    yield from _start_of_a_rank(machine)


def _job(machine: Machine, method: str) -> dict[str, Any]:
    return {
        "function": "steps:main",
        "params": {"steps": 10**6, "variant": "plain", "step_s": 0.02},
        "code": {"dir": str(JOBS)},
        "resources": machine.resources(),
        "checkpoint": {"interval_steps": 20},
        "restart": {"max_restarts": 100},
        "distributed": {"start_method": method},
    }


def has_context(pid: int) -> bool:
    """Whether a process has opened CUDA: it holds GPU memory, or a device of the driver."""
    with contextlib.suppress(OSError):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(fd).startswith("/dev/nvidia"):
                    return True
    with contextlib.suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        for number in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(number)
            if pid in [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]:
                return True
    return False


def _recovery(one: Run, number: int) -> tuple[float, float, float]:
    """Seconds until the round has ended, the next is ordered, and its first step is done."""
    one.until_saved(len(one.events("saved")) + 1)
    killed = one.kill(rank=0)
    first = one.until("the next step", lambda: [e for e in one.events("first_step") if e["round"] == number + 1])[0][
        "t"
    ]
    (ended,) = [e["t"] for e in one.events("round_ended") if e["round"] == number]
    (started,) = [e["t"] for e in one.events("round_started") if e["round"] == number + 1]
    return ended - killed, started - ended, first - started


def _figures(method: str, parts: list[tuple[float, float, float]]) -> Iterator[Figure]:
    whole, note = statistics.median(sum(part) for part in parts), f"median of {len(parts)}"
    yield Figure(f"{method}: killed rank to the first step of the next round", whole, "s", note=note)
    names = ("the round has ended", "the next is ordered", "first step: context, NCCL, load")
    for name, values in zip(names, zip(*parts, strict=True), strict=True):
        yield Figure(f"{method}: {name}", statistics.median(values), "s")


def _start_of_a_rank(machine: Machine) -> Iterator[Figure]:
    """What a forked process with torch does before its first step, one after the other."""
    context = multiprocessing.get_context("fork")
    rows = []
    for _ in range(3):
        ours, theirs = context.Pipe()
        process = context.Process(target=_first, args=(theirs, machine.gpus > 0))
        process.start()
        theirs.close()  # else a child that crashed would be waited for
        rows.append(ours.recv())
        process.join()
    for name in rows[0]:
        yield Figure(f"a forked rank: {name}", statistics.median(row[name] for row in rows), "s", note="median of 3")


def _first(results: Any, on_gpu: bool) -> None:
    import torch.distributed as dist

    wait = torch.cuda.synchronize if on_gpu else lambda: None
    moments = [time.perf_counter()]
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.ones(1, device=device)
    moments.append(time.perf_counter())
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    given = {"device_id": device} if on_gpu else {}
    dist.init_process_group("nccl" if on_gpu else "gloo", store=store, rank=0, world_size=1, **given)
    dist.all_reduce(torch.ones(1, device=device))
    wait()
    moments.append(time.perf_counter())
    model = torch.nn.Linear(1024, 1024).to(device)
    model(torch.ones(8, 1024, device=device)).sum().backward()
    wait()
    moments.append(time.perf_counter())
    names = ("the device's context", "the communicator", "the first forward and backward pass")
    results.send({name: b - a for name, a, b in zip(names, moments, moments[1:], strict=False)})
    os._exit(0)
