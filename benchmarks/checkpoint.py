"""How long a save blocks training: ours against ``torch.save`` + fsync and DCP's async_save, in turns on one state.

``python benchmarks/checkpoint.py [--mb 512] [--pairs 7] [--dir .]`` prints medians. A model of about a third of the size and
Adam's two moments make the state: the weights are copied at the boundary, the moments behind the next passes. Ours is measured while
a training step runs over and over, and so is what the write behind it costs: the slow-down of those steps until the file is durable.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp

from launcher.run.message_lines import Channel
from launcher.training.checkpoint.write import CheckpointWriter


def build(megabytes: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model whose weights and Adam's moments take about ``megabytes`` in all."""
    layers = max(1, megabytes // 48)
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048, bias=False) for _ in range(layers)])
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return model, optimizer


def synchronous(value: dict[str, Any], folder: Path) -> float:
    """Seconds of torch.save and fsync."""
    began = time.perf_counter()
    with open(folder / "sync.pt", "wb") as file:
        torch.save(value, file)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - began


def dcp_async(value: dict[str, Any], folder: Path) -> tuple[float, float]:
    """(seconds blocked, seconds until durable) of torch.distributed.checkpoint.async_save, nothing else running meanwhile."""
    began = time.perf_counter()
    under_way = dcp.async_save(value, checkpoint_id=folder / "dcp")
    blocked = time.perf_counter() - began
    under_way.result()  # type: ignore[union-attr]
    durable = time.perf_counter() - began
    shutil.rmtree(folder / "dcp")
    return blocked, durable


def gradients(model: torch.nn.Module, batch: torch.Tensor) -> None:
    """A training step up to the optimizer."""
    model.zero_grad()
    model(batch).square().mean().backward()


def lone_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> float:
    """Seconds of a whole step with nothing beside it."""
    began = time.perf_counter()
    gradients(model, batch)
    optimizer.step()
    return time.perf_counter() - began


def overlapped(
    saver: CheckpointWriter,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    folder: Path,
    number: int,
    batch: torch.Tensor,
) -> tuple[float, float, float]:
    """(seconds blocked, seconds until durable, extra seconds of the steps meanwhile)."""
    lone = min(lone_step(model, optimizer, batch) for _ in range(2))
    late = {v.data_ptr() for s in optimizer.state.values() for v in s.values()}
    began = time.perf_counter()
    saver.save(
        number, folder / f"tmp.{number}", lambda: [("state.pt", tree(model, optimizer))], {}, copy=True, late=late
    )
    blocked = time.perf_counter() - began
    steps = 0
    while saver.saved_step != number:
        gradients(model, batch)
        before = time.perf_counter()
        saver.settle()
        blocked += time.perf_counter() - before
        optimizer.step()
        steps += 1
    saver.drain()
    total = time.perf_counter() - began
    return blocked, total, max(0.0, total - blocked - steps * lone)


def tree(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state, by reference."""
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=512)
    parser.add_argument("--batch", type=int, default=64, help="samples of a training step")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--dir", default=None, help="where to write (default: the temporary folder)")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.dir))
    _agent, worker = socket.socketpair()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # async_save wants one
    saver = CheckpointWriter(Channel(worker), torch.device("cpu"))
    model, optimizer = build(arguments.mb)
    batch = torch.randn(arguments.batch, 2048)
    rows: list[tuple[float, ...]] = []
    dcp_s: list[tuple[float, float]] = []
    try:
        overlapped(saver, model, optimizer, folder, 0, batch)  # the first save allocates the buffers
        for number in range(1, arguments.pairs + 1):
            sync_s = synchronous(tree(model, optimizer), folder)
            dcp_s.append(dcp_async(tree(model, optimizer), folder))
            found = overlapped(saver, model, optimizer, folder, number, batch)
            rows.append((sync_s, *found, found[0] / sync_s))
            shutil.rmtree(folder / f"tmp.{number}")
            print(f"torch.save+fsync {sync_s:.3f} s; ours blocked {found[0]:.3f} s, durable after {found[1]:.3f} s")
    finally:
        shutil.rmtree(folder)
        dist.destroy_process_group()
    blocked, durable = (statistics.median(column) for column in zip(*dcp_s[1:], strict=True))
    print(f"DCP async_save: blocked {blocked:.3f} s, durable after {durable:.3f} s, with nothing beside it")
    sync_s, blocked, total, slowed, share = (statistics.median(column) for column in zip(*rows, strict=True))
    print(
        f"median of {len(rows)} pairs: torch.save+fsync {sync_s:.3f} s; ours blocked {blocked:.3f} s ({share:.3f} "
        f"of it, at most {max(row[-1] for row in rows):.3f}), durable after {total:.3f} s, steps meanwhile {slowed:.3f} s slower"
    )


if __name__ == "__main__":
    main()
