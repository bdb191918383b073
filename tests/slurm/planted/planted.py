"""Failures on purpose: what a user's code can do wrong, one function each; rank 1 of two does it."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

import launcher


def train(worker: launcher.Worker, hows: list[str]) -> None:
    """Round by round the next of ``hows`` happens at step 3; a round beyond the last completes (after waiting, if told)."""
    number = int(os.environ["LAUNCHER_ROUND"])
    how = hows[number] if number < len(hows) else ""
    at = 60 if how in ("hang", "frozen") else 3  # a hang's limit is learned from steps before it
    for step in range(5 if not how else 100_000):
        if step == at and how:
            Path(os.environ["LAUNCHER_RUN_DIR"], f"planted-{number}").touch()
            if how in BOTH:
                BOTH[how](worker)
            elif worker.rank == 1 and how in FAULTS:
                FAULTS[how](worker)
        time.sleep(0.02)
        dist.all_reduce(torch.ones(1))  # as training does: who waits for a rank that hangs makes no progress
        worker.step(loss=1.0 / (step + 1))


def bad_value(_: Any) -> None:
    """A plain exception."""
    raise ValueError("bad label 11")


def missing_key(_: Any) -> None:
    """An exception out of a library call."""
    {}["temperature"]


def no_module(_: Any) -> None:
    """A package that is not installed."""
    import a_package_nobody_has  # noqa: F401


def no_name(_: Any) -> None:
    """A name that a module lacks."""
    from math import no_such_function  # noqa: F401


def too_much_memory(_: Any) -> None:
    """More than any host has."""
    bytearray(1 << 60)


def too_much_gpu_memory(_: Any) -> None:
    """What CUDA's allocator says; there is no GPU to ask."""
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 1.20 GiB. GPU 1 has a total capacity of 79.20 GiB of which 317.00 MiB is free."
    )


def null_pointer(_: Any) -> None:
    """A crash in native code."""
    ctypes.string_at(0)


def by_signal(number: int) -> Any:
    """The process is sent a signal."""

    def act(_: Any) -> None:
        os.kill(os.getpid(), number)
        time.sleep(60)

    return act


def leaves(code: int) -> Any:
    """The process ends without a word."""

    def act(_: Any) -> None:
        os._exit(code)

    return act


def full_disk(_: Any) -> None:
    """A write that the kernel refuses."""
    with open("/dev/full", "w") as f:
        f.write("x" * 100_000)


def full_quota(_: Any) -> None:
    """What a file system with quota answers."""
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "/home/u/x")


def wait_for_lock(_: Any = None) -> None:
    """Hangs in code of its own."""
    time.sleep(3600)


def late(worker: Any) -> None:
    """Rank 1 does not come to a collective."""
    if worker.rank == 1:
        wait_for_lock()
    dist.all_reduce(torch.ones(1))


def barrier(worker: Any) -> None:
    """Rank 1 does not come to a monitored barrier."""
    if worker.rank == 1:
        wait_for_lock()
    from datetime import timedelta

    dist.monitored_barrier(timeout=timedelta(seconds=2))


def wrong_shape(_: Any) -> None:
    """An error of torch's."""
    torch.ones(2, 3) @ torch.ones(2, 3)


FAULTS: dict[str, Any] = {
    "exception": bad_value, "key error": missing_key, "no module": no_module, "no name": no_name, "memory": too_much_memory,
    "cuda memory": too_much_gpu_memory, "segfault": null_pointer, "killed": by_signal(signal.SIGKILL), "abort": lambda _: os.abort(),
    "float": by_signal(signal.SIGFPE), "bus": by_signal(signal.SIGBUS), "exit 3": leaves(3), "exit 0": leaves(0),
    "disk": full_disk, "quota": full_quota, "hang": wait_for_lock, "frozen": by_signal(signal.SIGSTOP), "shape": wrong_shape,
}  # fmt: skip
BOTH: dict[str, Any] = {"collective": late, "barrier": barrier}
