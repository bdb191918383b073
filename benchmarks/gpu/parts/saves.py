"""Saves of a large state: how long training is blocked, compared with ``torch.save`` plus fsync and DCP's async_save; memory; loading."""

from __future__ import annotations

import gc
import os
import shutil
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from figures import Figure, at_most, holds
from machine import Machine

from launcher.run.message_lines import Channel
from launcher.training.checkpoint.read import load_shared
from launcher.training.checkpoint.write import SHARED, CheckpointWriter

GB = 10**9
BUDGET_S = 90.0
"""For all writing: a slow disk gets a smaller state."""
WRITES = 6
SAVES = 2
GOAL_PERCENT = 5.0
LONGEST_SAVE_S = 60.0


class Trained:
    """A model of about ``size`` bytes with Adam's moments, trained on the device."""

    def __init__(self, machine: Machine, size: int) -> None:
        width = machine.pick(4096, 512)
        layers = max(1, size // (3 * 4 * width * width))
        parts = [torch.nn.Linear(width, width, bias=False, device=machine.device) for _ in range(layers)]
        self.model = torch.nn.Sequential(*parts)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.saved = torch.empty(0)
        """The first weights, as they were at the latest save."""
        self.batch = torch.randn(64, width, device=machine.device)

    def step(self) -> None:
        """One optimizer step."""
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        _wait()

    def tree(self) -> dict[str, Any]:
        """The state, by reference."""
        return {"format": 1, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


def run(machine: Machine) -> Iterator[Figure]:
    """The state is a model's weights and Adam's moments on the device; steps go on while it is written."""
    speed = _disk(machine)
    yield Figure("the disk writes", speed / GB, "GB/s", note=machine.pick("1 GB with fsync", "64 MB with fsync"))
    size = machine.pick(min(10 * GB, int(speed * BUDGET_S / WRITES)), 64 * 10**6)
    trained = Trained(machine, size)
    for _ in range(3):
        trained.step()
    yield Figure("size of the state", _bytes(trained.tree()) / GB, "GB")
    plain_s = _blocked(lambda: _save(trained.tree(), machine.folder / "plain.pt"))
    yield Figure("torch.save and fsync block", plain_s, "s", note="once")
    yield from _ours(machine, trained, plain_s)
    yield from _dcp(machine, trained)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _bytes(tree: Any) -> int:
    if isinstance(tree, torch.Tensor):
        return tree.numel() * tree.element_size()
    return (
        sum(map(_bytes, tree.values() if isinstance(tree, dict) else tree))
        if isinstance(tree, dict | list | tuple)
        else 0
    )


def _blocked(work: Callable[[], object]) -> float:
    _wait()
    began = time.perf_counter()
    work()
    _wait()
    return time.perf_counter() - began


def _save(tree: Any, path: Path) -> None:
    with path.open("wb") as file:
        torch.save(tree, file)
        file.flush()
        os.fsync(file.fileno())
    path.unlink()


def _disk(machine: Machine) -> float:
    """Bytes per second."""
    chunk, count, path = os.urandom(16 << 20), machine.pick(64, 4), machine.folder / "probe"
    began = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(count):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    path.unlink()
    return count * len(chunk) / (time.perf_counter() - began)


def _ours(machine: Machine, trained: Trained, plain_s: float) -> Iterator[Figure]:
    agent, worker = socket.socketpair()
    threading.Thread(target=_swallow, args=(agent,), daemon=True).start()
    writer = CheckpointWriter(Channel(worker), machine.device)
    trained.optimizer.register_step_pre_hook(lambda *_: writer.settle())  # as the shared loop does
    lone_s = statistics.median(_blocked(trained.step) for _ in range(5))
    trained.saved = trained.model[0].weight.detach().clone()
    before = torch.cuda.memory_allocated() if machine.gpus else 0
    first, *rows = [
        _one_save(writer, trained, machine.folder / f"tmp.{number}", number, lone_s) for number in range(SAVES + 1)
    ]
    yield Figure("the first save blocks", first[0], "s", note="it makes the buffers in host memory")
    blocked_s, durable_s, slower_s = (statistics.median(column) for column in zip(*rows, strict=True))
    yield Figure("a save blocks", blocked_s, "s")
    yield at_most(
        "of what torch.save and fsync block", 100 * blocked_s / plain_s, "%", GOAL_PERCENT, counts=machine.gpus > 0
    )
    yield Figure("it is durable after", durable_s, "s")
    yield Figure("steps meanwhile are slower by", slower_s, "s", note=f"in all; a step takes {lone_s * 1000:.1f} ms")
    if machine.gpus:
        yield from _memory(before)
    yield from _back(machine, trained, machine.folder / f"tmp.{SAVES}")


def _one_save(
    writer: CheckpointWriter, trained: Trained, folder: Path, number: int, lone_s: float
) -> tuple[float, float, float]:
    """Seconds blocked, until durable, and by which the steps meanwhile were slower."""
    trained.saved = trained.model[0].weight.detach().clone()
    began = time.perf_counter()
    held = _blocked(lambda: writer.save(number, folder, lambda: [(SHARED, trained.tree())], {}, copy=True))
    steps = 0
    while writer.saved_step != number:
        if time.perf_counter() - began > LONGEST_SAVE_S:
            raise RuntimeError(f"save {number} is not durable after {LONGEST_SAVE_S:.0f} s")
        trained.step()
        steps += 1
    writer.drain()
    total = time.perf_counter() - began
    if number < SAVES:
        shutil.rmtree(folder)
    return held, total, max(0.0, total - held - steps * lone_s)


def _memory(before: int) -> Iterator[Figure]:
    """What the saves used beside the state and the steps."""
    if hasattr(torch.cuda, "host_memory_stats"):
        pinned = torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0)
        yield Figure("pinned memory, peak", pinned / GB, "GB")
    yield Figure(
        "device memory beside the state, peak",
        (torch.cuda.max_memory_allocated() - before) / GB,
        "GB",
        note="gradients are part of it",
    )
    gc.collect()
    yield holds("nothing is kept on the GPU afterwards", torch.cuda.memory_allocated() <= before + 2**20)


def _back(machine: Machine, trained: Trained, folder: Path) -> Iterator[Figure]:
    began = time.perf_counter()
    state = load_shared(folder)
    weights = [value.to(machine.device) for value in state["model"].values()]
    moments = [value.to(machine.device) for own in state["optimizer"]["state"].values() for value in own.values()]
    _wait()
    seconds = time.perf_counter() - began
    yield Figure(
        "a resume has the state on the device after",
        seconds,
        "s",
        note=f"{_bytes([weights, moments]) / GB / seconds:.2f} GB/s",
    )
    yield holds("it is what was saved, although training went on", torch.equal(weights[0], trained.saved))
    shutil.rmtree(folder)


def _swallow(agent: socket.socket) -> None:
    while agent.recv(65536):
        pass


def _dcp(machine: Machine, trained: Trained) -> Iterator[Figure]:
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    dist.init_process_group("gloo", store=dist.TCPStore("127.0.0.1", 0, 1, is_master=True), rank=0, world_size=1)
    try:
        folder = machine.folder / "dcp"
        began = time.perf_counter()
        future = dcp.async_save(trained.tree(), checkpoint_id=folder)
        held = time.perf_counter() - began
        while not future.done():
            trained.step()
        future.result()
        yield Figure(
            "DCP's async_save blocks",
            held,
            "s",
            note=f"durable after {time.perf_counter() - began:.2f} s; its first save",
        )
        shutil.rmtree(folder)
    finally:
        dist.destroy_process_group()
