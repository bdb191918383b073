"""How many operations of the rendezvous store a process group of gloo takes to form, by rank.

    python benchmarks/store_traffic.py [--ranks 8 16 32 64]

All ranks are processes of this machine, forked after torch is imported. Every call that torch makes on the store it is given is counted:
for init_process_group, and for the first all-reduce after it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

METHODS = (
    "set",
    "get",
    "add",
    "wait",
    "check",
    "compare_set",
    "append",
    "multi_get",
    "multi_set",
    "delete_key",
    "num_keys",
)


class CountingStore(dist.Store):
    """Passes every operation on to another store, and counts it."""

    def __init__(self, inner: dist.Store) -> None:
        super().__init__()
        self.inner = inner
        self.calls: Counter[str] = Counter()
        self.bytes = 0


def _counted(name: str) -> Any:
    def call(self: CountingStore, *args: Any) -> Any:
        self.calls[name] += 1
        self.bytes += sum(len(a) for a in args if isinstance(a, str | bytes))
        answer = getattr(self.inner, name)(*args)
        self.bytes += len(answer) if isinstance(answer, bytes) else 8
        return answer

    return call


for _name in METHODS:
    setattr(CountingStore, _name, _counted(_name))


def rank_main(rank: int, size: int, port: int, results: Any) -> None:
    """One rank."""
    torch.set_num_threads(1)
    store = CountingStore(dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False))
    began = time.monotonic()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=300))
    seconds, formed = time.monotonic() - began, Counter(store.calls)
    sent = store.bytes
    dist.all_reduce(torch.ones(1))
    results.put((rank, seconds, dict(formed), dict(store.calls - formed), sent))
    dist.barrier()
    dist.destroy_process_group()


def measure(size: int) -> list[tuple[int, float, dict[str, int], dict[str, int], int]]:
    """Return of each rank: seconds to form, calls to form, calls of the first all-reduce, bytes."""
    context = multiprocessing.get_context("fork")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    results = context.Queue()
    ranks = [context.Process(target=rank_main, args=(rank, size, store.port, results)) for rank in range(size)]
    for each in ranks:
        each.start()
    found = sorted(results.get() for _ in ranks)
    for each in ranks:
        each.join()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 16, 32, 64])
    print("| ranks | operations a rank, median (most) | of all | bytes of all | first all-reduce | seconds |")
    print("| --- | --- | --- | --- | --- | --- |")
    for size in parser.parse_args().ranks:
        found = measure(size)
        calls = [sum(formed.values()) for _, _, formed, _, _ in found]
        later = sum(sum(more.values()) for _, _, _, more, _ in found)
        sent, seconds = sum(row[4] for row in found), max(row[1] for row in found)
        middle = f"{statistics.median(calls):.0f} ({max(calls)})"
        print(f"| {size} | {middle} | {sum(calls):,} | {sent:,} | {later} | {seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
