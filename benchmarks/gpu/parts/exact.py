"""Interrupted runs end as uninterrupted ones do, bit for bit: a killed rank, an agreed stop, a resume.

amp: fp16 with a gradient scaler. accumulated: several micro-batches a step. compiled: torch.compile. graphed: the model in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from figures import Figure, holds
from machine import Machine
from runs import JOBS, Run

from launcher.training.checkpoint import read

STEPS, SAVE_EVERY = 60, 10
VARIANTS = ("plain", "amp", "accumulated", "compiled", "graphed")
AT_ONCE = 5
"""Runs side by side: each waits mostly for imports and for the restart."""


def run(machine: Machine) -> Iterator[Figure]:
    """Each variant with ``deterministic: true``; then how far two runs are apart without."""
    variants = machine.pick(VARIANTS, ("amp", "accumulated"))
    with ThreadPoolExecutor(machine.pick(AT_ONCE, 1)) as pool:
        apart = pool.submit(_apart, machine)
        for variant, (same, note) in zip(variants, pool.map(lambda v: _variant(machine, v), variants), strict=True):
            yield holds(f"{variant}: killed, stopped and resumed equals uninterrupted", same, note)
        yield Figure("two uninterrupted runs without deterministic: largest difference of a weight", apart.result())


def _job(machine: Machine, variant: str, *, deterministic: bool = True, step_s: float = 0.02) -> dict[str, Any]:
    return {
        "function": "steps:main",
        "params": {"steps": STEPS, "variant": variant, "step_s": step_s},
        "code": {"dir": str(JOBS)},
        "resources": machine.resources(),
        "checkpoint": {"interval_steps": SAVE_EVERY},
        "deterministic": deterministic,
        "restart": {"hang_floor_s": 120},
    }


def _variant(machine: Machine, variant: str) -> tuple[bool, str]:
    straight = Run(machine.folder, f"{variant}-straight", _job(machine, variant, step_s=0.0))
    broken = Run(machine.folder, f"{variant}-broken", _job(machine, variant))
    try:
        broken.until_saved(2)
        broken.kill(rank=machine.ranks - 1)
        broken.until_step(SAVE_EVERY * 3, round_=1)
        broken.command("cancel", broken.paths.root.name, "--save")
        broken.end("cancelled")
        broken.command("resubmit", broken.paths.root.name)
        broken.until("the next attempt", lambda: len(broken.events("attempt_started")) == 2)
        broken.end()
        straight.end()
        rounds = [e.get("resume_step") or 0 for e in broken.events("round_started")]
        one, other = straight.digest(), broken.digest()
        differ = [name for name in one if one[name] != other.get(name)]
        note = f"rounds began at steps {', '.join(map(str, rounds))}"
        return not differ and len(rounds) == 3, note + (f"; different: {', '.join(differ)}" if differ else "")
    finally:
        straight.discard()
        broken.discard()


def _apart(machine: Machine) -> float:
    runs = [Run(machine.folder, f"free-{n}", _job(machine, "amp", deterministic=False, step_s=0.0)) for n in range(2)]
    weights = []
    for one in runs:
        one.end()
        state = read.load_shared(one.paths.root / one.checkpoint())["objects"]["model"]
        weights.append(torch.cat([value.flatten().double() for value in state.values()]))
    return float((weights[0] - weights[1]).abs().max())
