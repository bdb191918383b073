"""FSDP2 and DTensor: state that is sharded over the ranks, saved by DCP, resumed on as many ranks and on fewer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from figures import Figure, holds
from machine import Machine
from runs import JOBS, Run

STEPS = 40


def run(machine: Machine) -> Iterator[Figure]:
    """Stop, resume on the same number of ranks, and on half of them."""
    straight = Run(machine.folder, "straight", _job(machine, machine.folder / "straight.txt", slow_s=0.0))
    stopped = Run(machine.folder, "stopped", _job(machine, machine.folder / "stopped.txt", slow_s=1.5))
    try:
        stopped.until_step(STEPS // 2)
        stopped.command("cancel", stopped.paths.root.name, "--save")
        stopped.end("cancelled")
        halved = _halved(machine, stopped) if machine.ranks > 1 else None
        stopped.command("resubmit", stopped.paths.root.name)
        stopped.until("the next attempt", lambda: len(stopped.events("attempt_started")) == 2)
        stopped.end()
        straight.end()
        ends = [_told(machine.folder / f"{name}.txt")["ended", STEPS] for name in ("straight", "stopped")]
        yield holds(f"{machine.ranks} ranks: stopped and resumed equals uninterrupted", ends[0] == ends[1])
        if halved is not None:
            yield halved
    finally:
        straight.discard()
        stopped.discard()


def _job(machine: Machine, out: Any, *, slow_s: float) -> dict[str, Any]:
    return {
        "script": "sharded.py",
        "args": [str(STEPS), str(out), str(slow_s)],
        "code": {"dir": str(JOBS)},
        "resources": machine.resources(),
        "checkpoint": {"interval_steps": 10},
        "deterministic": True,
    }


def _halved(machine: Machine, stopped: Run) -> Figure:
    """A fork of the stopped run on half as many ranks has the weights that were saved."""
    ranks = machine.ranks // 2
    size = [f"resources.{name}={value}" for name, value in machine.resources(ranks).items() if name.endswith("_node")]
    out = machine.folder / "halved.txt"
    words = [stopped.paths.root.name, "--fork", "halved", *size, f"args=[{STEPS},{out},0.0]"]
    stopped.command("resubmit", *words)
    stopped.until("the fork", lambda: out.exists() and any(name == "ended" for name, _ in _told(out)))
    saved, resumed = _told(machine.folder / "stopped.txt"), _told(out)
    step = next(step for name, step in resumed if name == "resumed")
    return holds(
        f"{ranks} ranks resume with the weights that {machine.ranks} saved",
        saved["saved", step] == resumed["resumed", step],
    )


def _told(out: Any) -> dict[tuple[str, int], str]:
    lines = [line.split() for line in out.read_text().splitlines()]
    return {(what, int(step)): digest for what, step, _, digest in lines}
