"""A small job with everything a resume must bring back: dropout, batch norm, Adam, a scheduler, an awkward batch count.

Its pace is set by ``step_s``, so that a fault can be aimed. A file ``fault-KIND-RANK`` in the run directory makes that
rank do KIND once (the file is removed first): ``exit`` leaves by os._exit(3), ``exception`` raises, ``spin`` never comes back
from pure Python, ``lock`` waits for a lock that nobody gives back, ``barrier`` calls a barrier that ranks without the order
skip. A file ``slow-start``, ``slow-save`` or ``slow-evaluation`` there makes these take as many seconds as it says; with ``hurry``
steps take no time any more.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import launcher


def seconds(what: str) -> float:
    """How long something is to take, as the file of that name in the run directory says."""
    try:
        return float(Path(os.environ["LAUNCHER_RUN_DIR"], what).read_text() or 0)
    except FileNotFoundError:
        return 0.0


class Slow:
    """State that takes a while to save, when told."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing, late."""
        time.sleep(seconds("slow-save"))
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""


class Steady(launcher.Training):
    """One hundred rows, batch 4 per rank."""

    def __init__(
        self, epochs: int = 8, step_s: float = 0.05, rows: int = 240, evaluates: bool = False, note: str = ""
    ) -> None:
        self.epochs = epochs
        self.evaluates = evaluates
        self.batch_size = 4
        self.step_s = step_s
        self.rows = rows
        self.note = note  # changes nothing: what a sweep may vary

    def model(self) -> nn.Module:
        """A network whose result depends on RNG and buffers."""
        time.sleep(seconds("slow-start"))
        return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))

    def train_data(self) -> TensorDataset:
        """The same rows on every rank."""
        generator = torch.Generator().manual_seed(5)
        return TensorDataset(
            torch.randn(self.rows, 6, generator=generator), torch.randn(self.rows, 1, generator=generator)
        )

    def test_data(self) -> TensorDataset | None:
        """Five batches on each of three ranks."""
        return TensorDataset(torch.zeros(60, 6), torch.zeros(60, 1)) if self.evaluates else None

    def metrics(self, model: nn.Module, batch: list[torch.Tensor]) -> dict[str, Any]:
        """Mean squared error, at the wanted pace."""
        time.sleep(seconds("slow-evaluation") / 5)
        return {"loss": nn.functional.mse_loss(model(batch[0]), batch[1])}

    def state(self) -> dict[str, Any]:
        """What may make a save slow."""
        return {"slow": Slow()}

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """An optimizer with state."""
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    def scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        """A schedule that changes at every step."""
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)

    def loss(self, model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        """Mean squared error, at the wanted pace."""
        time.sleep(0.0 if Path(os.environ["LAUNCHER_RUN_DIR"], "hurry").exists() else self.step_s)
        misbehave()
        x, y = batch
        return nn.functional.mse_loss(model(x), y)


def misbehave() -> None:
    """Do what a test asks of this rank, once."""
    run = Path(os.environ["LAUNCHER_RUN_DIR"])
    rank = os.environ["RANK"]
    for kind, act in ACTS.items():
        order = run / f"fault-{kind}-{rank}"
        if order.exists():
            order.unlink()
            act()


def leave() -> None:
    """Without a word."""
    os._exit(3)


def fail() -> None:
    """A plain exception."""
    raise RuntimeError("planted")


def spin() -> None:
    """Compute for ever, without a step."""
    n = 0
    while True:
        n += 1


def wait_for_lock() -> None:
    """A deadlock of the user's own."""
    lock = threading.Lock()
    with lock, lock:
        pass


def barrier() -> None:
    """Some ranks come, the others do not."""
    torch.distributed.barrier()


ACTS = {"exit": leave, "exception": fail, "spin": spin, "lock": wait_for_lock, "barrier": barrier}
