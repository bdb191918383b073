"""Functions whose loops over data are written as users write them; each batch that is trained on is noted in order.txt."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import TensorDataset

from launcher import Training


def numbers(length: int) -> TensorDataset:
    """Samples that know their number."""
    x = torch.randn(length, 4, generator=torch.Generator().manual_seed(7))
    return TensorDataset(x, torch.arange(length))


class Job:
    """A model, its optimizer and a scheduler, registered."""

    def __init__(self, worker: Any, width: int = 4) -> None:
        self.worker = worker
        self.model = worker.wrap(torch.nn.Linear(4, width))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.5)
        worker.register(model=self.model, optimizer=self.optimizer, scheduler=self.scheduler)

    def train(self, batch: Any, *, step: bool = True) -> None:
        """One forward and backward pass, and the optimizer's step."""
        with (self.worker.run_dir / f"order-{self.worker.rank}.txt").open("a") as file:
            file.write(f"{batch[1].tolist()} {self.optimizer.param_groups[0]['lr']}\n")
        self.model(batch[0]).square().mean().backward()
        if step:
            self.optimizer.step()
            self.optimizer.zero_grad()


def range_of_epochs(worker: Any) -> None:
    """Epochs that the launcher does not know of."""
    job, data = Job(worker), numbers(12)
    for _ in range(3):
        for batch in worker.batches(data, 4):
            job.train(batch)
        job.scheduler.step()


def in_epochs(worker: Any, *, inside: bool = True, shuffle: bool = True) -> None:
    """Two epochs, in `epochs` or as one loop."""
    job, data = Job(worker), numbers(24)
    if not inside:
        for batch in worker.batches(data, 4, epochs=2, shuffle=shuffle):
            job.train(batch)
        return
    for _ in worker.epochs(2):
        for batch in worker.batches(data, 4, shuffle=shuffle):
            job.train(batch)


def scheduled_first(worker: Any) -> None:
    """The scheduler steps before an epoch's first batch."""
    job, data = Job(worker), numbers(24)
    for epoch in worker.epochs(3):
        if epoch:
            job.scheduler.step()
        for batch in worker.batches(data, 4):
            job.train(batch)


def scheduled_late(worker: Any) -> None:
    """The scheduler is made, and registered, when the optimizer has been."""
    job = Job(worker)
    warm_up = torch.optim.lr_scheduler.LinearLR(job.optimizer, 0.1, total_iters=8)
    worker.register(warm_up=warm_up)
    for batch in worker.batches(numbers(24), 4, epochs=2):
        job.train(batch)
        warm_up.step()


def short_epochs(worker: Any) -> None:
    """Three steps an epoch, whatever the data hold."""
    job, data = Job(worker), numbers(40)
    for _ in worker.epochs(3):
        for batch in worker.batches(data, 4):
            job.train(batch)
            if (worker.steps_done + 1) % 3 == 0:
                break
        job.scheduler.step()


def held_loops(worker: Any, *, inside: bool = True) -> None:
    """Loops left by `break` while a name holds them, as ``bar = tqdm(...)`` does."""
    job, data = Job(worker), numbers(40)
    for _ in worker.epochs(3) if inside else range(1):
        loop = worker.batches(data, 4)
        for batch in loop:
            job.train(batch)
            if (worker.steps_done + 1) % 3 == 0:
                break
        job.scheduler.step()
    globals()["held"] = loop


def growing(worker: Any) -> None:
    """Each epoch has more samples."""
    job = Job(worker)
    for epoch in worker.epochs(3):
        for batch in worker.batches(numbers(8 + 4 * epoch), 4):
            job.train(batch)


def swapped(worker: Any) -> None:
    """Weights are swapped through ``.data`` for the evaluation, and back, as moving averages are."""
    job, data = Job(worker, width=8192), numbers(16)
    weights = list(job.model.parameters())
    for _ in worker.epochs(2):
        for batch in worker.batches(data, 4):
            job.train(batch)
        kept = [weight.data.clone() for weight in weights]
        for weight in weights:
            weight.data.zero_()
        (worker.run_dir / "evaluates").touch()
        worker.evaluate(job.model, numbers(40_000), 1, lambda model, batch: {"mean": model(batch[0]).mean().item()})
        for weight, value in zip(weights, kept, strict=True):
            weight.data.copy_(value)


def left_steps(worker: Any) -> None:
    """`steps` left by `break` behind the optimizer's step."""
    job, data = Job(worker), numbers(40)
    for step in worker.steps(10):
        job.train([tensor[4 * step : 4 * step + 4] for tensor in data.tensors])
        if step == 4:
            break


def two_loops(worker: Any) -> None:
    """One loop after another, over other data."""
    job = Job(worker)
    for batch in worker.batches(numbers(24), 4):
        job.train(batch)
    for batch in worker.batches(numbers(36), 4):
        job.train(batch)


def steps_behind(worker: Any) -> None:
    """A loop over `steps` after one over `batches`: its checkpoints were of the state that the first one had ended with."""
    job = Job(worker)
    for batch in worker.batches(numbers(24), 4):
        job.train(batch)
    for _ in worker.steps(10):
        job.train(numbers(4).tensors)


def by_hand(worker: Any) -> None:
    """Gradients of four items make a step."""
    job = Job(worker)
    for number, batch in enumerate(worker.batches(numbers(32), 4, epochs=1)):
        job.train(batch, step=number % 4 == 3)


def by_hand_in_steps(worker: Any, *, how: str) -> None:
    """A loop over `steps` in which not every step has one of the optimizer's."""
    torch.manual_seed(0)
    model = worker.wrap(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker.register(model=model, **({} if how == "not registered" else {"optimizer": optimizer}))
    scaler = torch.amp.GradScaler("cpu") if how == "skipped" else None
    for number in worker.steps(12):
        learns = number % 4 == 3
        if how == "learns seldom" and not learns:
            continue  # the old gradients stay
        if how in ("learns seldom", "skipped"):
            optimizer.zero_grad()
        loss = model(torch.randn(3, 4)).square().mean()
        (loss if scaler is None else scaler.scale(loss)).backward()
        if learns:
            optimizer.step()
        if learns and how == "summed":
            optimizer.zero_grad()


def zipped(worker: Any) -> None:
    """Two loops at once."""
    for _ in zip(worker.batches(numbers(8), 4, epochs=1), worker.batches(numbers(8), 4, epochs=1), strict=True):
        pass


def epochs_of_its_own_loader(worker: Any) -> None:
    """`epochs` around a loader of one's own."""
    for _ in worker.epochs(2):
        worker.step()


class Task(Training):
    """A task with options as ``params`` say."""

    batch_size = 4

    def __init__(self, **options: Any) -> None:
        for name, value in options.items():
            setattr(self, name, value)

    def model(self) -> torch.nn.Module:
        """See `Training`."""
        return torch.nn.Linear(4, 2)

    def train_data(self) -> Any:
        """See `Training`."""
        return numbers(8)

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """See `Training`."""
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """See `Training`."""
        return model(batch[0]).square().mean()  # type: ignore[no-any-return]


def stack(samples: list[Any]) -> Any:
    """Collate without ``self``."""
    return torch.utils.data.default_collate(samples)


class Collated(Task):
    """Its collate function is a class attribute."""

    collate = stack


class OnPlateau(Task):
    """A scheduler that wants a metric."""

    def scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        """See `Training`."""
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
