"""What the shared loop costs per step beside a plain DDP loop: short blocks of both in turns, within the same processes.

``python benchmarks/step_overhead.py [--ranks 2] [--pairs 400] [--block 20] [--hidden 512] [--cpu]``. One run of
``launcher.Training``'s loop with an agent listening (progress, metrics and the boundary's checks included) stops after every
``--block`` steps for as many steps of a loop written by hand around DistributedDataParallel, same model, same data in memory. A
machine whose speed changes from second to second changes for both alike: each of our blocks is compared with the mean of the
plain ones before and after it. Prints the median of these ratios and a 95 % interval for it (bootstrap). Reports are sent by
the clock, so a loop that runs half of the time sends twice as many per step: what is printed is rather too much.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import random
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from launcher import Training, Worker
from launcher.run.message_lines import Channel
from launcher.run.paths import RunPaths
from launcher.run.spec import CheckpointSpec, RunSpec, Work
from launcher.training.ddp.data import fetch
from launcher.training.loop import run_task
from launcher.training.process.place import WorkerPlace
from launcher.training.step.session import Session
from launcher.training.step.stopping import Gate, listen

BATCH = 64
CLOCK = time.perf_counter


def data(samples: int) -> TensorDataset:
    """The same rows everywhere."""
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(samples, 256, generator=generator), torch.randint(0, 10, (samples,), generator=generator)
    )


def network(hidden: int) -> torch.nn.Module:
    """Three layers."""
    layers = [torch.nn.Linear(256, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, hidden), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(hidden, 10))


class Plain:
    """A loop by hand, some steps at a time; data is read and shuffled the same way."""

    def __init__(self, place: WorkerPlace, dataset: TensorDataset, hidden: int) -> None:
        self.place, self.dataset = place, dataset
        self.model = torch.nn.parallel.DistributedDataParallel(network(hidden), gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))
        self.at = 0

    def run(self, steps: int) -> None:
        """The next ``steps`` of it."""
        for _ in range(steps):
            first = self.at + self.place.rank * BATCH
            x, y = fetch(self.dataset, self.order[first : first + BATCH].tolist())
            loss = torch.nn.functional.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.at = (self.at + BATCH * self.place.world_size) % (len(self.dataset) // 2)


class Task(Training):
    """The measured job, interrupted for blocks of plain steps."""

    batch_size = BATCH

    def __init__(self, dataset: TensorDataset, hidden: int, block: int, plain: Plain) -> None:
        self.dataset, self.hidden, self.block, self.plain = dataset, hidden, block, plain
        self.steps = 0
        self.ours: list[float] = []
        self.theirs: list[float] = []
        self.resumed = CLOCK()

    def model(self) -> torch.nn.Module:
        """See network."""
        return network(self.hidden)

    def train_data(self) -> TensorDataset:
        """See data."""
        return self.dataset

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        """Cross-entropy; from one call to the next is a step."""
        if self.steps % self.block == 0:
            self.take_turns()
        self.steps += 1
        x, y = batch
        return torch.nn.functional.cross_entropy(model(x), y)

    def take_turns(self) -> None:
        """Our block is over; one of theirs."""
        stopped = CLOCK()
        self.plain.run(self.block)
        self.ours.append((stopped - self.resumed) / self.block)
        self.resumed = CLOCK()
        self.theirs.append((self.resumed - stopped) / self.block)

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(model.parameters(), lr=0.01)


def in_turns(place: WorkerPlace, arguments: argparse.Namespace) -> list[tuple[float, float]]:
    """Seconds per step, pair by pair: our block, and the mean of the plain ones around it. The first tenth warms up."""
    dataset = data((arguments.pairs + 2) * arguments.block * BATCH * arguments.ranks)
    session = Session(place, Gate(), torch.device("cpu"))
    task = Task(dataset, arguments.hidden, arguments.block, Plain(place, dataset, arguments.hidden))
    run_task(Worker(session), session, task)
    around = [(before + after) / 2 for before, after in itertools.pairwise(task.theirs)]
    return list(zip(task.ours[1:], around, strict=True))[arguments.pairs // 10 :]


def rank_main(rank: int, arguments: argparse.Namespace, port: int, folder: str, results: Any) -> None:
    """One rank."""
    global CLOCK
    CLOCK = time.thread_time if arguments.cpu else time.perf_counter
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=arguments.ranks)
    agent, mine = socket.socketpair()
    threading.Thread(target=_swallow, args=(agent,), daemon=True).start()
    channel = Channel(mine)
    listen(channel, Gate(), rank)
    paths = RunPaths(Path(folder))
    spec = RunSpec.read(paths.spec)
    place = WorkerPlace(rank=rank, local_rank=rank, world_size=arguments.ranks, spec=spec, paths=paths, channel=channel)
    pairs = in_turns(place, arguments)
    if rank == 0:
        results.put(pairs)
    dist.destroy_process_group()


def _swallow(agent: socket.socket) -> None:
    while agent.recv(65536):
        pass


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--block", type=int, default=20, help="steps in a row")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument(
        "--cpu", action="store_true", help="main thread's CPU time instead of wall time: for a busy machine"
    )
    arguments = parser.parse_args()
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        write_spec(Path(folder), arguments.ranks)
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        results = context.Queue()
        workers = [
            context.Process(target=rank_main, args=(rank, arguments, store.port, folder, results))
            for rank in range(arguments.ranks)
        ]
        for worker in workers:
            worker.start()
        pairs = results.get()
        for worker in workers:
            worker.join()
    report(pairs)


def write_spec(folder: Path, ranks: int) -> None:
    """The least that a session wants to know."""
    RunSpec(
        id="overhead",
        name="overhead",
        run_dir=str(folder),
        work=Work(kind="task", target="none:none"),
        batch="local",
        nodes=1,
        tasks_per_node=ranks,
        timeout_min=60,
        backend="gloo",
        control_ports=[],
        checkpoint=CheckpointSpec(enabled=False),
    ).write(RunPaths(folder).spec)


def report(pairs: list[tuple[float, float]]) -> None:
    """Medians, and a bootstrap interval of the median ratio."""
    ratios = [mine / theirs - 1 for mine, theirs in pairs]
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    mine, theirs = (statistics.median(column) * 1000 for column in zip(*pairs, strict=True))
    print(f"{len(pairs)} pairs: ours {mine:.3f} ms per step, plain DDP {theirs:.3f} ms")
    print(
        f"overhead {100 * statistics.median(ratios):+.2f} % (95 %: {100 * medians[50]:+.2f} to {100 * medians[1949]:+.2f})"
    )


if __name__ == "__main__":
    main()
