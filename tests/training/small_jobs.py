"""Jobs that workers of these tests run."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

from launcher import Training, Worker


def numbers(n: int, seed: int = 7) -> TensorDataset:
    """``n`` rows of 10 with a class each."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 10, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long(), torch.arange(n))


class Noisy(Dataset[Any]):
    """Samples with random augmentation, from torch's and python's generators."""

    def __init__(self, n: int) -> None:
        self.base = numbers(n)

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, index: int) -> Any:
        x, y, i = self.base[index]
        return x + 0.1 * torch.randn(10) + 0.1 * random.random(), y, i


class Net(Training):
    """Dropout, batch norm, momentum, a scheduler: everything whose state a resume could lose."""

    def __init__(
        self,
        epochs: int = 2,
        samples: int = 60,
        batch_size: int = 4,
        accumulate: int = 1,
        num_workers: int = 0,
        precision: str = "fp32",
        scheduler_every: str = "epoch",
        noisy: bool = False,
        test: bool = True,
        step_s: float = 0.0,
        test_s: float = 0.0,
        test_samples: int = 33,
        dropout: float = 0.3,
        seen: str = "",
        lr: float = 0.1,
        hidden: int = 24,
        fail_at: int = -1,
        fail_rank: int = 0,
    ) -> None:
        self.epochs, self.batch_size, self.accumulate, self.num_workers = epochs, batch_size, accumulate, num_workers
        self.precision, self.scheduler_every = precision, scheduler_every
        self.samples, self.noisy, self.test, self.step_s, self.test_s = samples, noisy, test, step_s, test_s
        self.test_samples = test_samples
        self.dropout, self.seen, self.lr, self.hidden = dropout, seen, lr, hidden
        self.fail_at, self.fail_rank = fail_at, fail_rank

    def model(self) -> torch.nn.Module:
        norm = [torch.nn.BatchNorm1d(self.hidden)] if self.dropout else []
        return torch.nn.Sequential(
            torch.nn.Linear(10, self.hidden),
            *norm,
            torch.nn.Dropout(self.dropout),
            torch.nn.ReLU(),
            torch.nn.Linear(self.hidden, 2),
        )

    def train_data(self) -> Any:
        return Noisy(self.samples) if self.noisy else numbers(self.samples)

    def test_data(self) -> Any:
        return numbers(self.test_samples, seed=8) if self.test else None

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        x, y, index = batch
        if model.training:
            if self.worker.steps_done == self.fail_at and self.worker.rank == self.fail_rank:
                raise RuntimeError("planted failure")
            time.sleep(self.step_s)
            if self.seen:
                indices = index.tolist()[: self.worker.samples]
                with open(f"{self.seen}.{self.worker.rank}", "a") as f:
                    f.write(f"{self.worker.steps_done} {self.worker.epoch} {indices}\n")
        else:
            time.sleep(self.test_s)
        return torch.nn.functional.cross_entropy(model(x), y)

    def metrics(self, model: Any, batch: Any) -> dict[str, Any]:
        x, y, _ = batch
        time.sleep(self.test_s)
        out = model(x)
        return {"accuracy": (out.argmax(1) == y), "loss": torch.nn.functional.cross_entropy(out, y)}

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.lr)

    def scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        if self.scheduler_every == "step":
            return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


class Poisoned(Net):
    """From step ``at`` on, the first micro-batch of rank 1 has a loss that is NaN: after the exchange every rank's weights are."""

    def __init__(self, at: int = 3, **params: Any) -> None:
        super().__init__(test=False, dropout=0.0, **params)
        self.at = at

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        poisoned = self.worker.rank == 1 and self.worker.steps_done == self.at and not self.worker.is_last_micro
        return super().loss(model, batch) * (float("nan") if poisoned else 1.0)


def own_loop(
    worker: Worker,
    epochs: int = 2,
    samples: int = 60,
    nested: bool = True,
    step_s: float = 0.0,
    test_s: float = 0.0,
    test_samples: int = 21,
) -> None:
    """A function job with everything registered by hand."""
    model = worker.wrap(torch.nn.Sequential(torch.nn.Linear(10, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    worker.register(model=model, optimizer=optimizer, scheduler=scheduler)
    data, test = numbers(samples), numbers(test_samples, seed=9)

    def train(batches: Any) -> None:
        for x, y, _ in batches:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            worker.scale(loss).backward()
            optimizer.step()
            worker.log(loss=loss, lr=optimizer.param_groups[0]["lr"])
            time.sleep(step_s)

    def measure(module: Any, batch: Any) -> dict[str, Any]:
        time.sleep(test_s)
        return {"accuracy": (module(batch[0]).argmax(1) == batch[1]).float()}

    if not nested:
        train(worker.batches(data, 4, epochs=epochs))
        return
    for _ in worker.epochs(epochs):
        train(worker.batches(data, 4))
        scheduler.step()
        worker.evaluate(model, test, 2, measure)


class Diary:
    """What one rank has drawn; has a state, as anything registered."""

    def __init__(self) -> None:
        self.lines: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {"lines": list(self.lines)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.lines = list(state["lines"])


def own_steps(worker: Worker, steps: int = 12, way: str = "steps", alike: bool = False, forget: bool = False) -> None:
    """Steps over data that python's, numpy's and torch's generators make up, each rank by its own seed."""
    seed = 5 if alike else worker.rank
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    model = worker.wrap(torch.nn.Sequential(torch.nn.Linear(10, 400), torch.nn.Dropout(0.3), torch.nn.Linear(400, 2)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    diary = Diary()
    worker.register(model=model)
    if not forget:
        worker.register(optimizer=optimizer)
    worker.register(per_rank=True, diary=diary)
    torch.rand(3)  # what is drawn before the loop is no part of what is resumed
    for _ in _counted(worker, steps, way):
        diary.lines += [random.random(), float(np.random.rand()), float(torch.rand(()))]
        for parameter in model.parameters():  # unseen by torch's counters, while the last step is being saved
            parameter.data.mul_(0.99)
        loss = model(torch.randn(4, 10) * diary.lines[-3] + diary.lines[-2]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if way == "step":
            worker.step(loss=loss)


def _counted(worker: Worker, steps: int, way: str) -> Any:
    if way == "steps":
        return worker.steps(steps)
    return range(worker.steps_done, steps)


def told_to_be_deterministic(worker: Worker, out: str) -> None:
    """Writes down what torch was told."""
    told = [torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark]
    with open(out, "w") as file:
        file.write(repr(told))


def evaluates(worker: Worker, sizes: list[int], batch_size: int = 4) -> None:
    """Evaluates data sets of ``sizes`` samples whose values are their numbers squared, as means and as one value each."""
    model = torch.nn.Identity()

    def measure(_: Any, batch: Any) -> dict[str, Any]:
        squares = batch[2].double().square()
        return {"mean": squares.mean(), "each": squares}

    for size in sizes:
        worker.evaluate(model, numbers(size), batch_size, measure)


class Incomplete(Training):
    """Lacks what a task must have."""

    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(1, 1)


def lonely_collective(worker: Worker) -> None:
    """Rank 0 waits for a rank that does something else."""
    if worker.rank == 0:
        torch.distributed.all_reduce(torch.ones(1))
    time.sleep(300)
