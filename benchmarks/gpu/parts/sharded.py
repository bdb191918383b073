"""FSDP2 and DTensor: state that is divided among the ranks, resumed on as many ranks and on fewer.

register: the launcher saves what is registered. folder: DCP writes into the launcher's `save_dir`.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from figures import Figure, holds
from machine import Machine, MissingError
from runs import JOBS, Run

from launcher.run.units import plural

STEPS = 40


def run(machine: Machine) -> Iterator[Figure]:
    """Both ways to save: stop, resume on the same number of ranks, and on half of them."""
    if not machine.gpus and not hasattr(torch.cpu.Stream, "record_event"):
        raise MissingError("FSDP2 of this torch works on GPUs alone (2.6)")
    straight = Run(machine.folder, "straight", _job(machine, "folder", machine.folder / "straight.txt", slow_s=0.0))
    try:
        with ThreadPoolExecutor(machine.pick(2, 1)) as pool:
            for figures in pool.map(lambda how: list(_stopped(machine, how, straight)), ("register", "folder")):
                yield from figures
    finally:
        straight.discard()


def _job(machine: Machine, how: str, out: Path, *, slow_s: float) -> dict[str, Any]:
    return {
        "script": "sharded.py",
        "args": [how, str(STEPS), str(out), str(slow_s)],
        "code": {"dir": str(JOBS)},
        "resources": machine.resources(),
        "checkpoint": {"interval_steps": 10},
        "deterministic": True,
    }


def _stopped(machine: Machine, how: str, straight: Run) -> Iterator[Figure]:
    stopped = Run(machine.folder, how, _job(machine, how, machine.folder / f"{how}.txt", slow_s=1.5))
    try:
        stopped.until_step(STEPS // 2)
        stopped.command("cancel", stopped.paths.root.name, "--save")
        stopped.end("cancelled")
        halved = _halved(machine, how, stopped) if machine.ranks > 1 else None
        stopped.command("resubmit", stopped.paths.root.name)
        stopped.until("the next attempt", lambda: len(stopped.events("attempt_started")) == 2)
        stopped.end()
        straight.end()
        ends = [_told(machine.folder / f"{name}.txt")["ended", STEPS] for name in ("straight", how)]
        yield holds(
            f"{how}, {plural(machine.ranks, 'rank')}: stopped and resumed equals uninterrupted", ends[0] == ends[1]
        )
        if halved is not None:
            yield halved
    finally:
        stopped.discard()


def _halved(machine: Machine, how: str, stopped: Run) -> Figure:
    """A fork of the stopped run on half as many ranks has the weights with which all had stopped."""
    ranks = machine.ranks // 2
    size = [f"resources.{name}={value}" for name, value in machine.resources(ranks).items() if name.endswith("_node")]
    out = machine.folder / f"{how}-halved.txt"
    words = [stopped.paths.root.name, "--fork", "halved", *size, f"args=[{how},{STEPS},{out},0.0]"]
    stopped.command("resubmit", *words)
    stopped.until("the fork", lambda: out.exists() and ("ended", STEPS) in _told(out))
    at_stop, resumed = _told(machine.folder / f"{how}.txt"), _told(out)
    step = next(step for what, step in resumed if what == "resumed")
    same = at_stop["stopped", step] == resumed["resumed", step]
    return holds(f"{how}: {ranks} ranks resume with the weights of {machine.ranks}", same)


def _told(out: Path) -> dict[tuple[str, int], str]:
    lines = [line.split() for line in out.read_text().splitlines()]
    return {(what, int(step)): digest for what, step, _, digest in lines}
