"""How many collectives a rank has started, as torch's own recorder tells another thread."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from launcher.training.process.collectives import collectives_started


def _rank(rank: int, port: int, answers: Any, release: Any) -> None:
    """Three reductions; then rank 0 waits in a fourth, which rank 1 starts only after both were asked."""
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    value = torch.ones(1)
    for _ in range(3):
        dist.all_reduce(value)
    asked = threading.Thread(target=_ask, args=(rank, 4 - rank, answers))
    asked.start()
    if rank:
        asked.join()
        release.wait()
    dist.all_reduce(value)
    asked.join()
    dist.destroy_process_group()


def _ask(rank: int, expected: int, answers: Any) -> None:
    found = None
    until = time.monotonic() + 30  # the main thread is about to start its reduction
    while found != expected and time.monotonic() < until:
        found = collectives_started()
    answers.put((rank, found))


def test_a_rank_that_waits_in_a_collective_has_started_one_more_than_the_absent_one() -> None:
    """Real gloo: another thread asks while the main thread waits. The absent rank has started three, the other four."""
    if not hasattr(_distributed_c10d, "_dump_fr_trace_json"):
        pytest.skip("this torch records no collectives of gloo")
    context = multiprocessing.get_context("spawn")  # what other tests have reduced in this process is on record here
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    answers, release = context.Queue(), context.Event()
    ranks = [context.Process(target=_rank, args=(rank, store.port, answers, release)) for rank in range(2)]
    for process in ranks:
        process.start()
    try:
        assert dict(answers.get(timeout=60) for _ in ranks) == {0: 4, 1: 3}
        release.set()
        for process in ranks:
            process.join(60)
            assert process.exitcode == 0
    finally:
        for process in ranks:
            process.kill()


def test_without_a_group_nothing_is_told() -> None:
    """No collective has been started, or this torch does not tell: None, and no error."""
    look = "from launcher.training.process.collectives import collectives_started; assert collectives_started() is None"
    subprocess.run([sys.executable, "-c", look], check=True, timeout=120)
