"""The process group: joins the agent's store, waits for late ranks under one time-out, runs collectives under another."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from launcher.errors import LauncherError
from launcher.run.units import named_ranks
from launcher.training.process.place import WorkerPlace


class StragglerError(LauncherError):
    """Not all ranks arrived in time; the message names those that did not."""


def choose_device(place: WorkerPlace) -> torch.device:
    """Return this rank's device, made current before anything is allocated."""
    threads = int(os.environ.get("OMP_NUM_THREADS") or 0)
    if threads > 0:
        # torch read the variable when the fork server imported it, before this worker's share was known.
        torch.set_num_threads(threads)
    if not torch.cuda.is_available() or place.spec.gpus_per_node == 0:
        return torch.device("cpu")
    device = torch.device("cuda", place.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def round_store(limit: timedelta) -> TCPStore:
    """Return a client of the round's store, which an agent serves: it outlives every process group."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(address, port, is_master=False, timeout=limit, wait_for_workers=False)


def open_group(place: WorkerPlace, device: torch.device) -> None:
    """Start the process group. Raises StragglerError naming the ranks that did not arrive in time."""
    spec = place.spec
    init = timedelta(minutes=spec.init_timeout_min)
    store = round_store(init)
    # gloo and NCCL would wait for late ranks under the collectives' time-out. One key, set by the last rank to arrive,
    # costs every rank three requests, however many ranks there are.
    store.set(f"arrived/{place.rank}", "1")
    if store.add("arrived", 1) >= place.world_size:
        store.set("all", "1")
    try:
        store.wait(["all"], init)
    except dist.DistStoreError:
        late = [rank for rank in range(place.world_size) if not store.check([f"arrived/{rank}"])]
        more = ", ..." if len(late) > 16 else ""
        raise StragglerError(
            f"{named_ranks(late[:16])}{more} of {place.world_size} did not arrive within "
            f"{spec.init_timeout_min:g} min (distributed.init_timeout_min)"
        ) from None
    dist.init_process_group(
        spec.backend,
        store=PrefixStore("launcher", store),
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(minutes=spec.collective_timeout_min),
        device_id=device if spec.backend == "nccl" else None,
    )


def before_group_ends(call: Callable[[], None]) -> None:
    """Call ``call`` each time that user code is about to destroy the group of all ranks.

    Not where an exception is handled: other ranks may not come, and ``call`` may wait for them.
    """
    inner = dist.destroy_process_group

    @functools.wraps(inner)
    def destroy(group: Any = None) -> None:
        if group in (None, dist.group.WORLD) and dist.is_initialized() and sys.exc_info()[1] is None:
            call()
        inner(group)

    dist.destroy_process_group = dist.distributed_c10d.destroy_process_group = destroy
