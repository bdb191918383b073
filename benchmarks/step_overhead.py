"""What the shared loop costs per step beside a plain DDP loop, in alternating pairs within the same processes.

``python benchmarks/step_overhead.py [--ranks 2] [--steps 400] [--pairs 15] [--hidden 512]``. Every pair trains the same model on
the same in-memory data: once by ``launcher.Training``'s loop with an agent listening (progress, metrics and the boundary's
checks included), once by a loop written by hand around DistributedDataParallel. The order within a pair alternates.
Prints the median of the pairs' ratios and a 95 % interval for it (bootstrap).
"""

from __future__ import annotations

import argparse
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
from launcher.run.messages import Channel
from launcher.run.paths import RunPaths
from launcher.run.spec import CheckpointSpec, RunSpec, Work
from launcher.training.data import fetch
from launcher.training.loop import run_task
from launcher.training.place import Place
from launcher.training.reporter import Reporter
from launcher.training.session import Session
from launcher.training.stopping import Gate, listen

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


class Task(Training):
    """The measured job."""

    batch_size = BATCH

    def __init__(self, dataset: TensorDataset, hidden: int) -> None:
        self.dataset, self.hidden = dataset, hidden
        self.times: list[float] = []

    def model(self) -> torch.nn.Module:
        """See network."""
        return network(self.hidden)

    def train_data(self) -> TensorDataset:
        """See data."""
        return self.dataset

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        """Cross-entropy."""
        self.times.append(CLOCK())
        x, y = batch
        return torch.nn.functional.cross_entropy(model(x), y)

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(model.parameters(), lr=0.01)


def ours(place: Place, dataset: TensorDataset, hidden: int) -> float:
    """Seconds per step of the shared loop."""
    gate, reporter = Gate(), Reporter(place.channel, metrics=place.rank == 0)
    session = Session(place, gate, reporter, torch.device("cpu"))
    task = Task(dataset, hidden)
    run_task(Worker(session), session, task)
    return per_step(task.times)


def plain(place: Place, dataset: TensorDataset, hidden: int) -> float:
    """Seconds per step of a loop by hand; data is read and shuffled the same way."""
    model = torch.nn.parallel.DistributedDataParallel(network(hidden), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))
    times = []
    for start in range(0, len(dataset), BATCH * place.world_size):
        first = start + place.rank * BATCH
        x, y = fetch(dataset, order[first : first + BATCH].tolist())
        times.append(CLOCK())
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return per_step(times)


def per_step(times: list[float]) -> float:
    """Seconds per step behind the first tenth, start to start."""
    warm = times[len(times) // 10 :]
    return (warm[-1] - warm[0]) / (len(warm) - 1)


def rank_main(rank: int, arguments: argparse.Namespace, port: int, folder: str, results: Any) -> None:
    """One rank: all pairs."""
    global CLOCK
    CLOCK = time.thread_time if arguments.cpu else time.perf_counter
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=arguments.ranks)
    agent, mine = socket.socketpair()
    threading.Thread(target=_swallow, args=(agent,), daemon=True).start()
    channel = Channel(mine)
    listen(channel, Gate(), lambda message: None)
    paths = RunPaths(Path(folder))
    spec = RunSpec.read(paths.spec)
    place = Place(rank=rank, local_rank=rank, world_size=arguments.ranks, spec=spec, paths=paths, channel=channel)
    dataset = data(arguments.steps * BATCH * arguments.ranks)
    for pair in range(arguments.pairs + 1):  # the first one warms up
        both = [ours, plain] if pair % 2 else [plain, ours]
        seconds = {run.__name__: run(place, dataset, arguments.hidden) for run in both}
        if rank == 0 and pair:
            results.put((seconds["ours"], seconds["plain"]))
    dist.destroy_process_group()


def _swallow(agent: socket.socket) -> None:
    while agent.recv(65536):
        pass


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pairs", type=int, default=15)
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
        pairs = [results.get() for _ in range(arguments.pairs)]
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
