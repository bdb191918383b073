"""A run's directory as the submitting command leaves it, and its agents as real processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from launcher.node.forkserver import proctable
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec, Work

WAIT_S = 240.0

FUNCTION = """
import os, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

def loads(worker):
    data = DataLoader(TensorDataset(torch.arange(1 << 20)), batch_size=1, num_workers=2)
    for (n,) in data:
        dist.all_reduce(n)
        if n.item() == 0 and worker.rank == 0:
            print("loaded", flush=True)

def adds(worker):
    x = torch.tensor([float(worker.rank)])
    dist.all_reduce(x)
    print("sum", x.item(), "threads", torch.get_num_threads())

def spawned(worker):
    import sys
    adds(worker)
    print("forked" if "launcher.node.forkserver.server" in sys.modules else "fresh")

def hangs(worker):
    import time
    print("up", flush=True)
    time.sleep(1000)
"""


def make_run(root: Path, target: str, **values: Any) -> RunPaths:
    """A run directory as the submitting command leaves it."""
    paths = RunPaths(root)
    paths.code.mkdir(parents=True)
    (paths.code / "job.py").write_text(FUNCTION)
    paths.secret.write_text(os.urandom(32).hex())
    usual: dict[str, Any] = {
        "id": root.name, "name": "r", "run_dir": str(root), "work": Work(kind="function", target=target),
        "batch": "local", "nodes": 2, "tasks_per_node": 2, "timeout_min": 5, "backend": "gloo",
        "port_range": [24100, 24159], "code_dir": str(paths.code), "init_timeout_min": 2.0,
    }  # fmt: skip
    RunSpec(**{**usual, **values}).write(paths.spec)
    return paths


def start(paths: RunPaths, node: int) -> subprocess.Popen[bytes]:
    """One agent, as submitit's local executor and ``launcher run`` start it."""
    log = (paths.root / f"agent-{node}.log").open("ab")
    with log:
        return subprocess.Popen(
            [sys.executable, "-m", "launcher.node.agent", str(paths.root), "--node", str(node)],
            env={**os.environ, "MARK": str(paths.root)}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip


def left(paths: RunPaths) -> list[int]:
    """Every process of that run."""
    return [pid for pid in proctable.table() if proctable.marked(pid, f"MARK={paths.root}".encode())]


async def until(condition: Any) -> None:
    """Wait for ``condition``."""

    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.05)

    await asyncio.wait_for(wait(), WAIT_S)
