"""Training in the variants whose resumes have to be exact: ``function: steps:main``. A step's data follow from its number and the rank."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

import torch

WIDTH = 64


def main(worker: Any, *, steps: int, variant: str, step_s: float = 0.0) -> None:
    """Train ``steps`` optimizer steps as ``variant`` says: plain, amp, compiled, graphed or accumulated; a step takes ``step_s`` longer."""
    device = worker.device
    torch.manual_seed(7)
    model = network(graphed=variant == "graphed", device=device)
    ddp = worker.wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device.type, enabled=variant == "amp")
    worker.register(model=ddp, optimizer=optimizer, scaler=scaler)
    forward = torch.compile(ddp) if variant == "compiled" else ddp
    dtype = torch.float16 if device.type == "cuda" else torch.bfloat16
    autocast = torch.autocast(device.type, dtype=dtype) if variant == "amp" else contextlib.nullcontext()
    micros = 3 if variant == "accumulated" else 1
    for step in worker.steps(steps):
        for micro in range(micros):
            x, y = batch(step * micros + micro, worker.rank, device)
            last = micro == micros - 1
            with contextlib.nullcontext() if last or worker.world_size == 1 else ddp.no_sync(), autocast:
                loss = torch.nn.functional.mse_loss(forward(x), y) / micros
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=variant != "graphed")
        # Slow from the middle of the first attempt on, so that a stop that is asked for then finds it at work.
        time.sleep(step_s * (75 if 2 * step > steps and os.environ.get("LAUNCHER_ATTEMPT") == "0" else 1))
        worker.step(loss=loss.detach())


def network(*, graphed: bool, device: torch.device) -> torch.nn.Module:
    """Layers with dropout, so that each rank's random numbers count; ``graphed``: captured in a CUDA graph before DDP wraps it."""
    layers = [torch.nn.Linear(WIDTH, 256), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(256, WIDTH)]
    model = torch.nn.Sequential(*layers).to(device)
    if graphed:
        with torch.random.fork_rng(devices=[device]):
            sample = torch.randn(32, WIDTH, device=device)
            model = torch.cuda.make_graphed_callables(model, (sample,))
    return model


def batch(number: int, rank: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The data of one micro-batch of one rank."""
    random = torch.Generator().manual_seed(1000 * number + rank)
    x, y = torch.randn(32, WIDTH, generator=random), torch.randn(32, WIDTH, generator=random)
    return x.to(device, non_blocking=True), y.to(device, non_blocking=True)
