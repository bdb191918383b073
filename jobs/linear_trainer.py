"""A Trainer over a loader: one unmodified script for torchrun, for process spawning and for the launcher.

    torchrun --nproc-per-node 4 linear_trainer.py       python linear_trainer.py --spawn 4
    launcher submit linear_trainer.yaml

2,048 random samples 20 → 1, batch 32 per rank: 64 steps an epoch on 1 rank, 16 on 4.

What its source got wrong, and this does not: cross-entropy over a single class, whose loss is always 0 (mean squared
error is meant); a sampler *and* shuffling; one batch read and thrown away to print its size; data that differed
between ranks because nothing was seeded; a loss printed from rank 0's share alone.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import NoReturn

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def dataset(samples: int = 2048, seed: int = 0) -> TensorDataset:
    """The same random samples on every rank, whatever else was drawn before."""
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.rand(samples, 20, generator=generator), torch.rand(samples, 1, generator=generator))


class Trainer:
    """Trains a model over a loader, one replica a process."""

    def __init__(
        self, model: nn.Module, loader: DataLoader[tuple[Tensor, ...]], lr: float, device: torch.device
    ) -> None:
        self.device = device
        self.loader = loader
        self.model = DistributedDataParallel(model.to(device), [device] if device.type == "cuda" else None)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        self.steps = 0

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """One optimizer step; the loss of this rank's batch."""
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(inputs.to(self.device)), targets.to(self.device))
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        return loss.detach()

    def epoch(self, number: int) -> float:
        """One pass over the data, in an order of its own; the average loss over all ranks."""
        assert isinstance(self.loader.sampler, DistributedSampler)
        self.loader.sampler.set_epoch(number)
        mean = torch.stack([self.step(x, y) for x, y in self.loader]).mean()
        dist.all_reduce(mean)
        return float(mean) / dist.get_world_size()


def train(args: argparse.Namespace) -> None:
    """Train in this process, whose group is up."""
    rank = dist.get_rank()
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank))) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    data = dataset()
    loader = DataLoader(data, args.batch_size, sampler=DistributedSampler(data, seed=0), pin_memory=gpu)
    trainer = Trainer(nn.Linear(20, 1), loader, 0.01, device)
    for number in range(args.epochs):
        loss = trainer.epoch(number)
        if rank == 0:
            print(f"epoch {number}: {len(loader)} steps on {dist.get_world_size()} ranks, loss {loss:.6f}", flush=True)
    print(f"rank {rank}: {trainer.steps} steps", flush=True)


def run(args: argparse.Namespace) -> NoReturn:
    """Be one rank: join the group that RANK, WORLD_SIZE and MASTER_* describe, train, leave it also when training fails."""
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        train(args)
    finally:
        dist.destroy_process_group()
    # DDP holds the group beyond its end (torch 2.13): a thread of gloo's that lets go of a tensor while Python is taken down
    # aborts the process, once in thirty runs of four ranks on two busy cores. So Python is not taken down.
    sys.stdout.flush()
    os._exit(0)


def spawned(rank: int, port: int, args: argparse.Namespace) -> NoReturn:
    """A spawned process: its own rank, the parent's store."""
    variables = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": args.spawn,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": port,
    }
    os.environ.update({name: str(value) for name, value in variables.items()})
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # the store is the parent's: nobody here binds the port
    run(args)


def main() -> None:
    """Run under torchrun or the launcher, or spawn ``--spawn`` processes here."""
    parser = argparse.ArgumentParser(description="train a linear model on every rank")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    parser.add_argument("--spawn", type=int, default=0, help="without torchrun: start so many ranks")
    args = parser.parse_args()
    if args.spawn and "RANK" not in os.environ:  # else torchrun or the launcher has started the ranks
        store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # port 0: free, and bound at once
        mp.spawn(spawned, (store.port, args), nprocs=args.spawn)
    else:
        run(args)


if __name__ == "__main__":
    main()
