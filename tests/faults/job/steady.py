"""A small job with everything a resume must bring back: dropout, batch norm, Adam, a scheduler, an awkward batch count.

Its pace is set by ``step_s``, so that a fault can be aimed. A file ``fault-KIND-RANK`` in the run directory makes that
rank do KIND once (the file is removed first): ``exit`` leaves by os._exit(3), ``exception`` raises.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import launcher


class Steady(launcher.Training):
    """One hundred rows, batch 4 per rank."""

    def __init__(self, epochs: int = 8, step_s: float = 0.05, rows: int = 240) -> None:
        self.epochs = epochs
        self.batch_size = 4
        self.step_s = step_s
        self.rows = rows

    def model(self) -> nn.Module:
        """A network whose result depends on RNG and buffers."""
        return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))

    def train_data(self) -> TensorDataset:
        """The same rows on every rank."""
        generator = torch.Generator().manual_seed(5)
        return TensorDataset(
            torch.randn(self.rows, 6, generator=generator), torch.randn(self.rows, 1, generator=generator)
        )

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """An optimizer with state."""
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    def scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        """A schedule that changes at every step."""
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        """Mean squared error, at the wanted pace."""
        time.sleep(self.step_s)
        misbehave()
        x, y = batch
        return nn.functional.mse_loss(model(x), y)


def misbehave() -> None:
    """Do what a test asks of this rank, once."""
    run = Path(os.environ["LAUNCHER_RUN_DIR"])
    rank = os.environ["RANK"]
    for kind in ("exit", "exception"):
        order = run / f"fault-{kind}-{rank}"
        if order.exists():
            order.unlink()
            if kind == "exit":
                os._exit(3)
            raise RuntimeError("planted")
