"""The shared worker on NCCL: Fashion-MNIST to its accuracy on one rank and on every GPU, each rank with random numbers of its own."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

from figures import Figure, holds
from machine import Machine, MissingError
from runs import JOBS, ROOT, Run

from launcher.run.units import plural

ACCURACY = 0.85
"""Ten epochs reached 0.8667 to 0.8746 on CPUs (docs/benchmarks.md)."""


def run(machine: Machine) -> Iterator[Figure]:
    """One rank, then one on each GPU; what each rank drew from its generators."""
    yield from _draws(machine)
    folder = _data(machine)
    for ranks in sorted({1, machine.ranks} if machine.gpus else {2}):
        began = time.monotonic()
        accuracy, rate = _fashion(machine, ranks, str(folder))
        seconds = time.monotonic() - began
        note = f"{seconds:.0f} s with submission and start; {rate:.0f} steps/s, evaluations and the last save included"
        goal = machine.pick(ACCURACY, 0.7)
        yield Figure(
            f"test accuracy on {plural(ranks, 'rank')}",
            accuracy,
            goal=f"at least {goal}",
            ok=accuracy >= goal,
            note=note,
        )


def _data(machine: Machine) -> Any:
    sys.path.append(str(ROOT / "jobs"))
    import fashion_mnist_data

    try:
        if machine.gpus and fashion_mnist_data.find() is None:
            raise MissingError("Fashion-MNIST is not here, and no network is used: FASHION_MNIST=FOLDER names it")
        return fashion_mnist_data.ensure()
    except OSError as error:
        raise MissingError(f"Fashion-MNIST is not here ({error})") from None


def _fashion(machine: Machine, ranks: int, folder: str) -> tuple[float, float]:
    job = {
        "task": "fashion_mnist:FashionMnist",
        "params": {"data": folder, **machine.pick({}, {"epochs": 2})},
        "code": {"dir": str(ROOT / "jobs")},
        "resources": machine.resources(ranks),
    }
    one = Run(machine.folder, f"fashion-{ranks}", job)
    try:
        one.end()
        (first,), (ended,) = one.events("first_step"), one.events("ended")
        rate = (ended["step"] - first["step"]) / (ended["t"] - first["t"])
        return one.events("evaluated")[-1]["metrics"]["test_accuracy"], rate
    finally:
        one.discard()


def _draws(machine: Machine) -> Iterator[Figure]:
    """The same in every run, another on every rank, and restored by a new round."""
    job = {
        "function": "draws:main",
        "code": {"dir": str(JOBS)},
        "resources": machine.resources(),
        "checkpoint": {"interval_steps": 5},
    }
    one = Run(machine.folder, "draws", job)
    try:
        one.until_saved(1)
        one.kill(rank=0)
        one.end()
        drawn: dict[tuple[int, int], set[float]] = {}
        for line in (one.paths.root / "draws").read_text().splitlines():
            rank, step, value = line.split()
            drawn.setdefault((int(rank), int(step)), set()).add(float(value))
        rounds = len(one.events("round_started"))
        again = all(len(values) == 1 for values in drawn.values())
        yield holds("a rank draws the same numbers after a restart", again and rounds == 2, f"{rounds} rounds")
        if machine.ranks > 1:
            firsts = {min(values) for (_, step), values in drawn.items() if step == 0}
            yield holds("ranks draw different numbers", len(firsts) == machine.ranks)
    finally:
        one.discard()
