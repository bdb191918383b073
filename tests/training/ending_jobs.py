"""Functions that leave a loop early, go on behind it, or give sizes of other types."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

DATA = torch.utils.data.TensorDataset(torch.arange(64.0 * 4).reshape(64, 4) / 256)


def _model(width: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = torch.nn.Linear(4, width)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _step(model: Any, optimizer: torch.optim.Optimizer, batch: Any) -> None:
    optimizer.zero_grad()
    model(batch[0]).square().mean().backward()
    optimizer.step()


def _slowly(model: Any, batch: Any) -> dict[str, Any]:
    time.sleep(0.2)
    return {"mean": model(batch[0]).mean()}


def changes_behind_its_loop(worker: Any, *, width: int, wait: str = "") -> None:
    """Trains, evaluates slowly where it is told to, then overwrites the weights, as one who loads averaged ones."""
    model, optimizer = _model(width)
    worker.register(model=model, optimizer=optimizer)
    for batch in worker.batches(DATA, 16, epochs=1):
        _step(model, optimizer, batch)
    if wait:
        Path(wait).touch()
        worker.evaluate(model, DATA, 1, _slowly)
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(7.0)


def leaves_early(worker: Any, *, after: int, behind: bool) -> None:
    """Leaves by `break` ``behind`` the optimizer's step of its step ``after``, or at the beginning of the next body."""
    model, optimizer = _model(4)
    worker.register(model=model, optimizer=optimizer)
    for number, batch in enumerate(worker.batches(DATA, 4, epochs=3)):
        if not behind and number == after:
            break
        _step(model, optimizer, batch)
        if behind and number + 1 == after:
            break
    torch.save(model.state_dict(), worker.run_dir / "weights.pt")


def loops_by_epochs(worker: Any, *, epochs: int = 4, same: bool = False) -> None:
    """A loop over `steps` per epoch of three steps: up to the epoch's end, or each up to the run's; changes the weights behind them."""
    model, optimizer = _model(4)
    worker.register(model=model, optimizer=optimizer)
    for epoch in range(worker.steps_done // 3 if same else 0, epochs):
        for _, start in zip(worker.steps(3 * epochs if same else 3 * (epoch + 1)), (0, 16, 32), strict=False):
            _step(model, optimizer, (DATA.tensors[0][start : start + 16],))
            worker.step()
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(7.0)


def leaves_an_epoch(worker: Any) -> None:
    """Leaves `epochs` by `break`, then loops again."""
    model, optimizer = _model(4)
    worker.register(model=model, optimizer=optimizer)
    for epoch in worker.epochs(3):
        for batch in worker.batches(DATA, 32):
            _step(model, optimizer, batch)
        if epoch == 1:
            break
    for batch in worker.batches(DATA, 32):
        _step(model, optimizer, batch)


def counts_in_numpy(worker: Any) -> None:
    """Sizes as a configuration that was computed with numpy has them."""
    model, optimizer = _model(4)
    worker.register(model=model, optimizer=optimizer)
    for batch in worker.batches(DATA, np.int64(8), epochs=np.int64(2), accumulate=np.int64(1)):
        _step(model, optimizer, batch)


def registers(worker: Any, *, how: str) -> None:
    """Registers two objects by one name, or one behind the first step."""
    model, optimizer = _model(4)
    worker.register(model=model)
    worker.register(model=model)  # the same once more changes nothing
    if how == "twice":
        worker.register(model=optimizer)
    for batch in worker.batches(DATA, 32):
        _step(model, optimizer, batch)
        if how == "late":
            worker.register(optimizer=optimizer)
