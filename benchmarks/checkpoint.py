"""How long a save blocks training: ours against ``torch.save`` + fsync, in alternating pairs on the same state.

``python benchmarks/checkpoint.py [--mb 512] [--pairs 7] [--dir .]`` prints medians. A model of about a third of the size and
Adam's two moments make the state. Ours is measured while a training step runs over and over, and so is what the write
behind it costs: the slow-down of those steps until the file is durable.
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

from launcher.run.messages import Channel
from launcher.training.checkpoint import Saver


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
    saver: Saver,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    folder: Path,
    number: int,
    batch: torch.Tensor,
) -> tuple[float, float, float]:
    """(seconds blocked, seconds until durable, extra seconds of the steps meanwhile); blocked as the shared loop is."""
    lone = min(lone_step(model, optimizer, batch) for _ in range(2))
    late = {p.data_ptr() for p in model.parameters()}
    late |= {v.data_ptr() for s in optimizer.state.values() for v in s.values() if v.numel() > 1}
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
    saver = Saver(Channel(worker), torch.device("cpu"))
    model, optimizer = build(arguments.mb)
    batch = torch.randn(arguments.batch, 2048)
    rows = []
    try:
        overlapped(saver, model, optimizer, folder, 0, batch)  # the first save allocates the buffers
        for pair in range(1, arguments.pairs + 1):
            sync_s = synchronous(tree(model, optimizer), folder)
            rows.append((sync_s, *overlapped(saver, model, optimizer, folder, pair, batch)))
            shutil.rmtree(folder / f"tmp.{pair}")
            print(
                f"pair {pair}: torch.save+fsync {sync_s:.3f} s; ours blocked {rows[-1][1]:.3f} s, durable after {rows[-1][2]:.3f} s"
            )
    finally:
        shutil.rmtree(folder)
    sync_s, blocked, total, slowed = (statistics.median(column) for column in zip(*rows, strict=True))
    print(
        f"median of {len(rows)}: torch.save+fsync {sync_s:.3f} s; ours blocked {blocked:.3f} s "
        f"({blocked / sync_s:.2f} of it), durable after {total:.3f} s, steps meanwhile {slowed:.3f} s slower in all"
    )


if __name__ == "__main__":
    main()
