"""Loops whose state all ranks hold alike, in checkpoints that several ranks write although it is small."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from crew import LIMIT_S

import launcher
from launcher.training.checkpoint import copies, shares, write


def trains(worker: Any, *, how: str = "wrap", steps: int = 6) -> None:
    """Train a model with tied weights, a buffer and an average of its own; ``how``: what the ranks do otherwise."""
    shares.SHARE_BYTES = 512  # type: ignore[misc]
    # Where nobody comes that is short; where all come, no rank that is kept from the core for a while counts as absent.
    shares._WAIT_S = 2.0 if how in ("rank 0 alone", "no store") else LIMIT_S  # type: ignore[misc]
    torch.manual_seed(3)
    model = Tied()
    if how == "hook":
        ddp: Any = torch.nn.parallel.DistributedDataParallel(model)
        ddp.register_comm_hook(None, local)
    else:
        ddp = worker.wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    average = torch.optim.swa_utils.AveragedModel(model)
    alone = how == "rank 0 alone" and worker.rank > 0
    worker.register(**({} if alone else {"model": ddp, "optimizer": optimizer}), average=average)
    if how == "held":
        worker.register(held=Holder(model))
    if how == "no store":
        os.environ["MASTER_PORT"] = "1"
    if how.startswith("full disk") and worker.rank == 1:
        fail_once(steps)
    for step in worker.steps(steps):
        random = torch.Generator().manual_seed(step * 10 + worker.rank)
        model.seen += 1 + worker.rank  # a buffer that differs between the ranks
        ddp(torch.randn(6, 8, generator=random)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
        if how == "apart":
            with torch.no_grad():
                model.out.bias.add_(worker.rank)
        worker.step()
    while how == "full disk, then waits" and not (worker.run_dir / "go").exists():
        time.sleep(0.01)
    if how == "full disk, then changed":
        with torch.no_grad():
            model.out.weight.fill_(7.0)


def changes_at_its_end(worker: Any, *, ranks: list[int]) -> None:
    """A loop over `batches`, after which these ranks change their weights."""
    shares.SHARE_BYTES = 512  # type: ignore[misc]
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(128, 256), torch.nn.Linear(256, 128)
    )  # large enough to be held by reference
    ddp = worker.wrap(model)
    worker.register(model=ddp)
    for batch in worker.batches(torch.utils.data.TensorDataset(torch.randn(16, 128)), 4):
        ddp(batch[0]).sum().backward()
    if worker.rank in ranks:
        with torch.no_grad():
            for value in model.parameters():
                value.fill_(7.0)


def local(_, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations with classes
    """Leave each rank its own gradients."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


class Holder:
    """The user's own: a state that holds the model's, in a dict of another type."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def state_dict(self) -> dict[str, Any]:
        """By reference."""
        return defaultdict(dict, inner=self.model.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """In place."""
        self.model.load_state_dict(state["inner"])


def fail_once(step: int) -> None:
    """Have the first try to save at ``step`` fail."""
    real, tries = write.write_file, []

    def written(path: Path, value: Any, mode: int) -> dict[str, Any]:
        if path.parent.name.endswith(f".{step}") and not tries:
            tries.append(path)
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, value, mode)

    write.write_file = written


class Tied(torch.nn.Module):
    """Two layers with one weight, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 5)
        self.second.weight = self.first.weight
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One after the other."""
        return self.out(self.second(self.first(x)).relu())


class ChangedLate(launcher.Training):
    """Its optimizer's moments are changed after the last step, when the save of that step has not copied them yet."""

    epochs = 1
    batch_size = 4

    def __init__(self, least: int) -> None:
        shares.SHARE_BYTES = least  # type: ignore[misc]
        wait, self.changed = copies.Snapshot.wait, threading.Event()

        def late(snapshot: Any) -> None:
            self.changed.wait(LIMIT_S)
            wait(snapshot)

        copies.Snapshot.wait = late  # type: ignore[method-assign]

    def model(self) -> torch.nn.Module:
        """One layer, large enough to be held by reference."""
        torch.manual_seed(3)
        return torch.nn.Linear(128, 256)

    def train_data(self) -> Any:
        """Four steps of two ranks."""
        return torch.utils.data.TensorDataset(torch.randn(32, 128))

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        """With moments."""
        self.moments = torch.optim.AdamW(model.parameters())
        return self.moments

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        """Any."""
        return model(batch[0]).square().mean()

    def after_epoch(self, epoch: int, loss: float) -> None:
        """As one who begins anew."""
        for state in self.moments.state.values():
            state["exp_avg"].fill_(7.0)
        self.changed.set()
