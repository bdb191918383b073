"""A job that keeps a ledger of the samples it trained on; without dropout and batch norm, whose results depend on shares."""

from __future__ import annotations

import os
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import launcher


class Ledger(launcher.Training):
    """Three samples per rank; ``seen`` is where each rank's ledger goes: a line EPOCH SAMPLE STEP ATTEMPT ROUND for each use."""

    batch_size = 3

    def __init__(self, epochs: int = 1, rows: int = 240, step_s: float = 0.1, seen: str = "") -> None:
        self.epochs, self.rows, self.step_s, self.seen = epochs, rows, step_s, seen

    def model(self) -> nn.Module:
        """Small, without anything that looks at its batch as a whole."""
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))

    def train_data(self) -> TensorDataset:
        """Rows with their number."""
        generator = torch.Generator().manual_seed(5)
        x = torch.randn(self.rows, 6, generator=generator)
        return TensorDataset(x, x.sum(1, keepdim=True), torch.arange(self.rows))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """With momentum."""
        return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        """Mean squared error; what counted goes into the ledger."""
        time.sleep(self.step_s)
        x, y, number = batch
        if self.seen:
            at = f"{self.worker.steps_done} {os.environ['LAUNCHER_ATTEMPT']} {os.environ['LAUNCHER_ROUND']}"
            with open(f"{self.seen}.{self.worker.rank}", "a") as file:
                file.writelines(f"{self.worker.epoch} {n} {at}\n" for n in number.tolist()[: self.worker.samples])
        return nn.functional.mse_loss(model(x), y)
