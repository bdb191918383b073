"""A step's cost in the shared loop (ours) beside a loop written by hand (plain), at 1, 5 and 40 ms a step.

How often each waits for the device, and for a batch.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator

import torch
from figures import Figure, at_most, holds
from machine import Machine
from runs import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import step_overhead
from step_overhead import Size

from launcher.training.ddp.data import to_device

STEP_MS = (1.0, 5.0, 40.0)
GOAL_US = 30.0
GOAL_PERCENT = 0.5
BATCHES = 6
BLOCKS_S = 6.0
"""For all blocks of one size."""


def run(machine: Machine) -> Iterator[Figure]:
    """Find the layers that give each step time, then measure blocks of both loops in turns."""
    ranks, gpus = machine.ranks, machine.gpus > 0
    hidden = machine.pick(4096, 64)
    few, many = (_plain_ms(Size(ranks, 20, 5, hidden, layers, gpus)) for layers in (2, 22))
    each_ms = max((many - few) / 20, 1e-3)
    for step_ms in machine.pick(STEP_MS, (1.0,)):
        layers = max(1, round((step_ms - few) / each_ms) + 2)
        block = max(2, round(20 / step_ms))
        pairs = machine.pick(max(20, round(BLOCKS_S * 1000 / (2 * block * step_ms))), 40)
        found, waits = step_overhead.measure(Size(ranks, pairs, block, hidden, layers, gpus))
        plain_us = 1e6 * statistics.median(theirs for _, theirs in found)
        cost, low, high = step_overhead.interval([1e6 * (ours - theirs) for ours, theirs in found])
        percent = 100 * cost / plain_us
        ok = cost <= GOAL_US or percent <= GOAL_PERCENT
        note = f"95 %: {low:.1f} to {high:.1f}; {percent:.2f} % of {plain_us / 1000:.2f} ms; {len(found)} pairs of {block} steps"
        yield Figure(
            f"cost of a step of {step_ms:g} ms",
            cost,
            "µs",
            f"{GOAL_US:g} µs or {GOAL_PERCENT} %" if gpus else "",
            ok if gpus else None,
            note,
        )
        if gpus:
            note = f"ours {waits['ours']}, plain {waits['plain']} in {block} steps"
            yield holds(
                f"no wait for the device is added to a step of {step_ms:g} ms", waits["ours"] <= waits["plain"], note
            )
    yield from _batch(machine)  # last: this process opens CUDA


def _batch(machine: Machine) -> Iterator[Figure]:
    """How long the host is busy with giving 64 images to a device that has other work to do."""
    wait = torch.cuda.synchronize if machine.gpus else lambda: None
    side = machine.pick(8192, 64)
    matrix, images = torch.randn(side, side, device=machine.device), torch.randn(64, 3, 224, 224)
    ways: dict[str, Callable[[], object]] = {
        "by hand": lambda: images.to(machine.device, non_blocking=True),
        "in the shared loop": lambda: to_device(images, machine.device),
    }
    for name, give in ways.items():
        times = []
        for _ in range(BATCHES):
            wait()
            for _ in range(4):
                matrix @ matrix
            began = time.perf_counter()
            give()
            given = time.perf_counter()
            wait()
            times.append((1000 * (given - began), 1000 * (time.perf_counter() - began)))
        given_ms, busy_ms = (statistics.median(column) for column in zip(*times, strict=True))
        counts = machine.gpus > 0 and name != "by hand"
        note = f"median of {BATCHES}; the device has work for {busy_ms:.1f} ms"
        yield at_most(f"38 MB given to a device at work {name}", given_ms, "ms", busy_ms / 2, counts=counts, note=note)


def _plain_ms(size: Size) -> float:
    found, _ = step_overhead.measure(size)
    return 1000 * statistics.median(theirs for _, theirs in found)
