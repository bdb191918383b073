"""A loop over a model that FSDP2 divides among the ranks; data follow from the step alone, so that any number of ranks can go on."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def trains(worker: Any, *, steps: int = 12) -> None:
    """Register model and optimizer, whose tensors are DTensors; print a digest of the whole weights at the start of each life."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 30), torch.nn.GELU(), torch.nn.Linear(30, 5))
    fully_shard(model, mesh=init_device_mesh("cpu", (worker.world_size,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    worker.register(model=model, optimizer=optimizer, average=Average(model))
    print("weights", worker.steps_done, digest(model), flush=True)
    for step in worker.steps(steps):
        random = torch.Generator().manual_seed(step)
        model(torch.randn(6, 8, generator=random)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        worker.step()
    print("weights", worker.steps_done, digest(model), flush=True)


def _scheduled(worker: Any, samples: int) -> tuple[Any, ...]:
    """A model in parts, its optimizer and a scheduler, registered, and data."""
    torch.manual_seed(3)
    model = torch.nn.Linear(8, 5)
    fully_shard(model, mesh=init_device_mesh("cpu", (worker.world_size,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    worker.register(model=model, optimizer=optimizer, scheduler=scheduler)
    data = torch.utils.data.TensorDataset(torch.randn(samples, 8, generator=torch.Generator().manual_seed(5)))
    return model, optimizer, scheduler, data


def _train(model: Any, optimizer: Any, batch: Any) -> None:
    """One optimizer step."""
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def schedules_first(worker: Any) -> None:
    """Epochs whose scheduler steps before their first batch: a resume repeats that."""
    model, optimizer, scheduler, data = _scheduled(worker, 24)
    for epoch in worker.epochs(3):
        if epoch:
            scheduler.step()
        for (batch,) in worker.batches(data, 4):
            _train(model, optimizer, batch)


def breaks_off(worker: Any) -> None:
    """Epochs of three steps, whatever the data hold; the scheduler steps behind each."""
    model, optimizer, scheduler, data = _scheduled(worker, 40)
    for _ in worker.epochs(3):
        for (batch,) in worker.batches(data, 4):
            _train(model, optimizer, batch)
            if (worker.steps_done + 1) % 3 == 0:
                break
        scheduler.step()


def changes_at_its_end(worker: Any) -> None:
    """A loop over `batches`, after which the user's last lines change the weights."""
    torch.manual_seed(3)
    model = torch.nn.Linear(8, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (worker.world_size,)))
    worker.register(model=model)
    for _ in worker.batches(torch.utils.data.TensorDataset(torch.randn(16, 8)), 4):
        pass
    with torch.no_grad():
        for value in model.parameters():
            value.fill_(7.0)


class Average:
    """The user's own: DTensors in a class that is neither a module nor an optimizer."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.values = {name: value.detach().clone() for name, value in model.named_parameters()}

    def state_dict(self) -> dict[str, Any]:
        """By reference."""
        return dict(self.values)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """In place."""
        for name, value in state.items():
            self.values[name].copy_(value)


class Late:
    """It has no state when it is registered, and DTensors later."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    state_dict, load_state_dict = Average.state_dict, Average.load_state_dict


def digest(model: torch.nn.Module) -> str:
    """Of all weights; a collective."""
    full = [value.full_tensor().detach() for value in model.parameters()]  # type: ignore[attr-defined]
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in full)).hexdigest()[:16]


def registers_wrongly(worker: Any, *, how: str) -> None:
    """What must be refused: FSDP's first version, and parts as if they were each rank's own."""
    if how == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        worker.register(model=FullyShardedDataParallel(torch.nn.Linear(8, 8), device_id=torch.device("cpu")))
    else:
        model = torch.nn.Linear(8, 8)
        fully_shard(model, mesh=init_device_mesh("cpu", (worker.world_size,)))
        late = Late()
        worker.register(late=late) if how == "late" else worker.register(model=model, per_rank=True)
        for _ in worker.steps(2):
            late.values = {name: value.detach() for name, value in model.named_parameters()}
            worker.step()
