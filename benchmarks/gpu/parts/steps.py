"""A step's cost in the shared loop beside a plain DDP loop, at 1, 5 and 40 ms a step; how often each waits for the device."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator

from figures import Figure, holds
from machine import Machine
from runs import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import step_overhead
from step_overhead import Size

STEP_MS = (1.0, 5.0, 40.0)
GOAL_US = 30.0
GOAL_PERCENT = 0.5
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


def _plain_ms(size: Size) -> float:
    found, _ = step_overhead.measure(size)
    return 1000 * statistics.median(theirs for _, theirs in found)
