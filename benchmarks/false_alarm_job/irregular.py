"""A job that is slow in every way in which a sound one may be, so that nothing but patience tells it from one that hangs.

Every pause is written into ``pauses-RANK.txt`` of the run directory: what it was and how many seconds it took.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import launcher

RANK = int(os.environ.get("RANK", "0"))
_fsync = os.fsync


def pause(kind: str, seconds: float) -> None:
    """Take that long, and write it down."""
    with open(Path(os.environ["LAUNCHER_RUN_DIR"], f"pauses-{RANK}.txt"), "a") as f:
        f.write(f"{kind} {seconds:.2f}\n")
    time.sleep(seconds)


def slow_disk(fd: int) -> None:
    """fsync of a disk that is busy with others."""
    pause("write", 8.0)
    _fsync(fd)


class SlowState:
    """State that takes a while to bring together, on the main thread."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing, late."""
        pause("copy", 12.0)
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""


class Irregular(launcher.Training):
    """Steps of ``step_s``, one in eight of them 2 to 20 times as long, on one rank at a time."""

    batch_size = 4

    def __init__(self, epochs: int = 1000, step_s: float = 0.4, rows: int = 600) -> None:
        self.epochs, self.step_s, self.rows = epochs, step_s, rows
        self.seen = 0
        os.fsync = slow_disk

    def model(self) -> nn.Module:
        """Something small."""
        return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))

    def train_data(self) -> TensorDataset:
        """The same rows on every rank."""
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(self.rows, 6, generator=generator)
        return TensorDataset(x, x.sum(1, keepdim=True))

    def test_data(self) -> TensorDataset:
        """Five batches a rank."""
        return TensorDataset(torch.zeros(60, 6), torch.zeros(60, 1))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """An optimizer with state."""
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    def state(self) -> dict[str, Any]:
        """What makes saves slow."""
        return {"slow": SlowState()}

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        """Mean squared error, at an irregular pace."""
        self.seen += 1
        if self.seen == 1 and RANK == 1:
            pause("first step", 60.0)
        chance = random.Random(self.seen)
        if chance.random() < 0.12 and self.seen % self.worker.world_size == RANK:
            pause("step", self.step_s * chance.uniform(2, 20))
        else:
            time.sleep(self.step_s)
        x, y = batch
        return nn.functional.mse_loss(model(x), y)

    def metrics(self, model: nn.Module, batch: list[torch.Tensor]) -> dict[str, Any]:
        """Slow on one rank, which the others wait for."""
        pause("evaluation batch", 10.0 if self.worker.world_size - 1 == RANK else 0.5)
        return {"loss": nn.functional.mse_loss(model(batch[0]), batch[1])}

    def after_epoch(self, epoch: int, loss: float) -> None:
        """The user's own business between two epochs."""
        pause("between epochs", 9.0 if RANK == 0 else 0.0)
