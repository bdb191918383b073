"""Failures that the authors of the launcher thought of themselves."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import torch
from cases import function_case, script_case
from torch import distributed as dist


@function_case(
    "exception",
    kind="exception",
    rank=1,
    says=["ValueError at step 3: bad label 11"],
    must=['raise ValueError("bad label 11")'],
)
def _(worker: Any) -> None:
    if worker.rank == 1:
        raise ValueError("bad label 11")


@function_case(
    "key error", kind="exception", rank=1, says=["KeyError at step 3: 'temperature'"], must=['{}["temperature"]']
)
def _(worker: Any) -> None:
    if worker.rank == 1:
        {}["temperature"]


@function_case(
    "own no module", kind="import", rank=1, says=["a_package_nobody_has"], must=["import a_package_nobody_has"]
)
def _(worker: Any) -> None:
    if worker.rank == 1:
        import a_package_nobody_has  # noqa: F401


@function_case("own no name in a module", kind="import", rank=1, says=["no_such_function"])
def _(worker: Any) -> None:
    if worker.rank == 1:
        from math import no_such_function  # noqa: F401


@function_case("own more memory than any host has", kind="host_memory", rank=1, says=["memory"])
def _(worker: Any) -> None:
    if worker.rank == 1:
        bytearray(1 << 60)


@function_case("own cuda memory", kind="cuda_oom", rank=1, says=["GPU memory"], must=["1.20 GiB"])
def _(worker: Any) -> None:
    if worker.rank == 1:
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 1.20 GiB. GPU 1 has a total capacity of 79.20 GiB of which 317.00 MiB is free."
        )


def null_pointer() -> None:
    """A crash in native code."""
    ctypes.string_at(0)


@function_case("own segfault", kind="signal", rank=1, says=["segmentation fault", "SIGSEGV"], must=["null_pointer"])
def _(worker: Any) -> None:
    if worker.rank == 1:
        null_pointer()


@function_case("own killed", kind="signal", rank=1, says=["killed", "SIGKILL"])
def _(worker: Any) -> None:
    if worker.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@function_case("own abort", kind="signal", rank=1, says=["SIGABRT"])
def _(worker: Any) -> None:
    if worker.rank == 1:
        os.abort()


@function_case("own exit 3", kind="exit", rank=1, says=["code 3"])
def _(worker: Any) -> None:
    if worker.rank == 1:
        os._exit(3)


@function_case("own exit 0 too early", kind="exit", rank=1, says=["code 0"])
def _(worker: Any) -> None:
    if worker.rank == 1:
        os._exit(0)


@function_case("own full disk", kind="disk_full", rank=1, says=["disk is full"])
def _(worker: Any) -> None:
    if worker.rank == 1:
        with open("/dev/full", "w") as f:
            f.write("x" * 100_000)


@function_case("own full quota", kind="disk_full", rank=1, says=["quota"])
def _(worker: Any) -> None:
    if worker.rank == 1:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "/home/u/x")


@function_case("own wrong shape", kind="exception", rank=1, says=["shapes cannot be multiplied"])
def _(worker: Any) -> None:
    if worker.rank == 1:
        torch.ones(2, 3) @ torch.ones(2, 3)


@function_case("own monitored barrier", kind="timeout", rank=1, says=["rank 0 gave up waiting"], soon_s=12)
def _(worker: Any) -> None:
    if worker.rank == 1:
        time.sleep(3600)
    dist.monitored_barrier(timeout=timedelta(seconds=2))


@function_case("own float", kind="signal", rank=1, says=["floating-point error", "SIGFPE"])
def _(worker: Any) -> None:
    if worker.rank == 1:
        os.kill(os.getpid(), signal.SIGFPE)
        time.sleep(60)


@function_case("own bus", kind="signal", rank=1, says=["bus error", "SIGBUS"])
def _(worker: Any) -> None:
    if worker.rank == 1:
        os.kill(os.getpid(), signal.SIGBUS)
        time.sleep(60)


@function_case("own rank that misses a collective", kind="hang", rank=1, says=["hung"], late=True, soon_s=13)
def _(worker: Any) -> None:
    if worker.rank == 1:
        time.sleep(3600)
    dist.all_reduce(torch.ones(1))


def wait_for_lock() -> None:
    """Hangs in code of its own."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


@function_case("own hang", kind="hang", rank=1, says=["hung"], must=["wait_for_lock"], late=True, soon_s=13)
def _(worker: Any) -> None:
    if worker.rank == 1:
        wait_for_lock()


@function_case("own frozen", kind="hang", rank=1, says=["frozen"], never=["messages.py"], late=True, soon_s=13)
def _(worker: Any) -> None:
    if worker.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)


@script_case("own traceback", kind="exception", rank=1, says=["RuntimeError", "shard 7 is empty"])
def _(rank: int, world_size: int) -> None:
    if rank == 1:
        raise RuntimeError("shard 7 is empty")


@script_case("own exit with words", kind="exit", rank=1, says=["code 3"], must=["giving up: no data"])
def _(rank: int, world_size: int) -> None:
    if rank == 1:
        print("giving up: no data", flush=True)
        sys.exit(3)


@script_case("own segfault", kind="signal", rank=1, says=["SIGSEGV"], must=["null_pointer"])
def _(rank: int, world_size: int) -> None:
    if rank == 1:
        null_pointer()


@script_case("own no module", kind="import", rank=1, says=["a_package_nobody_has"])
def _(rank: int, world_size: int) -> None:
    if rank == 1:
        import a_package_nobody_has  # noqa: F401


@script_case("own leaves early with 0", kind="exit", rank=1, says=["code 0"], never=["rank 0 raised"])
def _(rank: int, world_size: int) -> None:
    if rank == 1:
        sys.exit(0)
