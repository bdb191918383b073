"""The basic step and the checkpoint step: rank 0 saves, nobody loads before that, every rank loads onto its own device.

NCCL on GPUs, gloo on CPUs; ranks that start late are waited for (``distributed.init_timeout_min``, 30 minutes unless
said otherwise). The launcher saves and resumes a worker's state by itself; this job does it by hand, to show how.

What its source got wrong, and this does not: a checkpoint of a fixed name in the temporary folder that all users
share; a file that could be seen half-written; a pickle loaded without restriction.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import launcher

BATCH = 32
"""Per rank: 32 × world size is the effective batch (the 20 rows fill part of one)."""


def dataset(seed: int = 0) -> TensorDataset:
    """20 random rows of 10 and their targets, the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(20, 10, generator=generator), torch.randn(20, 10, generator=generator))


def save(model: nn.Module, path: Path) -> None:
    """Write the model's state whole or not at all: a temporary name, fsync, rename."""
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        torch.save(model.state_dict(), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def load(model: nn.Module, path: Path, device: torch.device) -> None:
    """Load the state onto ``device``, tensors and plain values only."""
    model.load_state_dict(torch.load(path, map_location=device, weights_only=True))


def parameters(model: nn.Module) -> Tensor:
    """All parameters as one vector."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def largest_difference(model: nn.Module, worker: launcher.Worker) -> float:
    """Between any rank's parameters and rank 0's."""
    mine = parameters(model)
    ranks = [torch.empty_like(mine) for _ in range(worker.world_size)]
    dist.all_gather(ranks, mine)
    return max(float((r - ranks[0]).abs().max()) for r in ranks)


def train(worker: launcher.Worker, steps: int = 5, lr: float = 0.001) -> None:
    """Some steps, then the checkpoint step. Raises ArithmeticError when ranks differ after the load."""
    model = worker.wrap(nn.Linear(10, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    worker.register(model=model, optimizer=optimizer)
    for _ in worker.epochs(steps):
        for rows, targets in worker.batches(dataset(), batch_size=BATCH):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(rows), targets)
            worker.scale(loss).backward()
            optimizer.step()
            worker.log(loss=loss)
    checkpoint_step(worker, model)


def checkpoint_step(worker: launcher.Worker, model: nn.Module) -> None:
    """Rank 0 saves, a barrier, every rank loads into a model that knows nothing."""
    folder = worker.run_dir or Path.cwd()
    path = folder / "linear.pt"
    if worker.rank == 0:
        save(model.module, path)
    dist.barrier()
    fresh = nn.Linear(10, 10).to(worker.device)
    load(fresh, path, worker.device)
    difference = largest_difference(fresh, worker)
    trained = float((parameters(fresh) - parameters(model)).abs().max())
    if difference != 0.0 or trained != 0.0:
        raise ArithmeticError(f"after the load ranks differ by {difference}, from what was saved by {trained}")
    if worker.rank == 0:
        print(f"effective batch {BATCH * worker.world_size}, backend {dist.get_backend()}")
        print(f"after the load {worker.world_size} ranks hold identical parameters", flush=True)
