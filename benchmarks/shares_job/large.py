"""A large model whose ranks save at every step; ``share`` is the least that one writes (shares.SHARE_BYTES)."""

from __future__ import annotations

from typing import Any

import torch

from launcher.training.checkpoint import shares


def main(worker: Any, *, megabytes: int, share_mb: int, steps: int) -> None:
    """Weights and Adam's moments take so many megabytes; a step is as short as it can be."""
    shares.SHARE_BYTES = share_mb * 2**20
    layers = max(1, megabytes // 48)
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048, bias=False) for _ in range(layers)])
    ddp = worker.wrap(model)
    optimizer = torch.optim.Adam(model.parameters())
    worker.register(model=ddp, optimizer=optimizer)
    for _ in worker.steps(steps):
        ddp(torch.randn(4, 2048)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        worker.step()
        worker._session.saver.drain()  # each save alone: the next would wait for it, and steps would take its processor time
