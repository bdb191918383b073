"""What the shared loop costs per step beside a plain DDP loop: short blocks of both in turns, within the same processes.

``python benchmarks/step_overhead.py [--loop task] [--ranks 2] [--pairs 400] [--block 20] [--hidden 512] [--layers 1] [--cpu]``.
``--loop``: ``task`` is the loop of ``launcher.Training``, ``batches`` a function's over ``worker.batches``, ``steps`` that of a script
with data of its own, over the ``steps`` of what ``launcher.attach`` gives it. One run of it with an agent listening (progress, metrics
and the boundary's checks included) stops after every ``--block`` steps for as many steps of a loop written by hand around
DistributedDataParallel, same model, same data in memory. A machine whose speed changes from second to second changes for both alike:
each of our blocks is compared with the mean of the plain ones before and after it. Prints the median of these ratios, and of the
differences, and a 95 % interval of each (bootstrap). Reports are sent by the clock, which stands still for them while the plain loop
runs.
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
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from launcher import Training, Worker
from launcher.run.message_lines import Channel
from launcher.run.paths import RunPaths
from launcher.run.spec import CheckpointSpec, RunSpec, Work
from launcher.training.ddp.data import fetch, to_device
from launcher.training.loop import run_task
from launcher.training.process.place import WorkerPlace
from launcher.training.process.reporter import Reporter
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


@dataclass(frozen=True)
class Size:
    """What is measured, and how often."""

    ranks: int = 2
    pairs: int = 400
    block: int = 20
    """Steps in a row."""
    hidden: int = 512
    layers: int = 1
    """Hidden layers: a step's time grows with them."""
    gpus: bool = False
    loop: str = "task"
    """Whose loop: `LOOPS`."""

    def device(self, rank: int) -> torch.device:
        """Where a rank computes."""
        return torch.device("cuda", rank) if self.gpus else torch.device("cpu")


def network(size: Size) -> torch.nn.Module:
    """Linear layers."""
    # Made where it is used: a hundred large layers take half a minute to fill on one CPU thread.
    with torch.device("cuda" if size.gpus else "cpu"):
        layers: list[torch.nn.Module] = [torch.nn.Linear(256, size.hidden), torch.nn.ReLU()]
        for _ in range(size.layers):
            layers += [torch.nn.Linear(size.hidden, size.hidden), torch.nn.ReLU()]
        return torch.nn.Sequential(*layers, torch.nn.Linear(size.hidden, 10))


def now(device: torch.device) -> float:
    """Seconds, when the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return CLOCK()


class Plain:
    """A loop by hand, some steps at a time; data is read and shuffled the same way."""

    def __init__(self, place: WorkerPlace, dataset: TensorDataset, size: Size, device: torch.device) -> None:
        self.place, self.dataset, self.device = place, dataset, device
        self.model = torch.nn.parallel.DistributedDataParallel(network(size).to(device), gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))
        self.at = 0

    def run(self, steps: int) -> None:
        """The next ``steps`` of it."""
        for _ in range(steps):
            self.step()

    def step(self) -> torch.Tensor:
        """The next one."""
        first = self.at + self.place.rank * BATCH
        x, y = to_device(fetch(self.dataset, self.order[first : first + BATCH].tolist()), self.device)
        loss = torch.nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.at = (self.at + BATCH * self.place.world_size) % (len(self.dataset) // 2)
        return loss


class Turns:
    """The clock of a measured loop, which is interrupted for blocks of plain steps."""

    def __init__(self, size: Size, plain: Plain, reporter: Reporter) -> None:
        self.size, self.block, self.plain = size, size.block, plain
        self.reporter = reporter
        self.steps = 0
        self.ours: list[float] = []
        self.theirs: list[float] = []
        self.waits: dict[str, int] = {}
        """On GPUs: how often a block of each waited for the device."""
        self.trace: Any = None
        self.resumed = CLOCK()

    def begin_step(self) -> None:
        """A step of ours begins; from one call to the next is a step."""
        if self.steps % self.block == 0:
            self.take_turns()
        self.steps += 1

    def take_turns(self) -> None:
        """Our block is over; one of theirs."""
        if self.trace is not None:  # before the clock is read, which waits
            self.waits["ours"], self.trace = waits_in(self.trace), None
        stopped, left = now(self.plain.device), time.monotonic()
        traced = self.size.gpus and len(self.ours) == self.size.pairs // 20
        if traced:
            trace = begin_trace()
        self.plain.run(self.block)
        if traced:
            self.waits["plain"] = waits_in(trace)
        self.ours.append((stopped - self.resumed) / self.block)
        self.resumed = now(self.plain.device)
        away_s = time.monotonic() - left
        self.reporter._progress_at += away_s
        self.reporter._metrics_at += away_s
        self.theirs.append((self.resumed - stopped) / self.block)
        if traced:
            self.trace = begin_trace()


class Task(Training):
    """The measured task."""

    batch_size = BATCH

    def __init__(self, dataset: TensorDataset, size: Size, turns: Turns) -> None:
        self.dataset, self.size, self.turns = dataset, size, turns

    def model(self) -> torch.nn.Module:
        """See network."""
        return network(self.size)

    def train_data(self) -> TensorDataset:
        """See data."""
        return self.dataset

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        """Cross-entropy."""
        self.turns.begin_step()
        x, y = batch
        return torch.nn.functional.cross_entropy(model(x), y)

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(model.parameters(), lr=0.01)


def run_shared(session: Session, dataset: TensorDataset, size: Size, turns: Turns) -> None:
    """A task's loop."""
    run_task(Worker(session), session, Task(dataset, size, turns))


def run_batches(session: Session, dataset: TensorDataset, size: Size, turns: Turns) -> None:
    """A function's loop."""
    worker = Worker(session)
    model = worker.wrap(network(size).to(worker.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    worker.register(model=model, optimizer=optimizer)
    for x, y in worker.batches(dataset, BATCH):
        turns.begin_step()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        worker.scale(loss).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        worker.log(loss=loss)


def run_steps(session: Session, dataset: TensorDataset, size: Size, turns: Turns) -> None:
    """A script's loop: its own data, its own DDP."""
    worker = Worker(session)
    script = Plain(session.place, dataset, size, worker.device)
    worker.register(model=script.model, optimizer=script.optimizer)
    for _ in worker.steps(len(dataset) // (BATCH * worker.world_size)):
        turns.begin_step()
        worker.log(loss=script.step())


LOOPS = {"task": run_shared, "batches": run_batches, "steps": run_steps}
"""Whose loop is measured."""
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
"""CUDA's calls in which the host waits for a device. Copies of pinned memory are cudaMemcpyAsync."""


def begin_trace() -> Any:
    """Begin to note what CUDA is asked to do."""
    trace = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA], acc_events=True
    )
    trace.start()
    return trace


def waits_in(trace: Any) -> int:
    """End the trace; return how often the host waited for the device, but for the end of the trace itself."""
    trace.stop()
    return sum(event.name in WAITS for event in trace.events())


def in_turns(place: WorkerPlace, size: Size) -> tuple[list[tuple[float, float]], dict[str, int]]:
    """Seconds per step, pair by pair: our block, and the mean of the plain ones around it. The first tenth warms up."""
    dataset = data((size.pairs + 2) * size.block * BATCH * size.ranks)
    device = size.device(place.rank)
    session = Session(place, Gate(), device)
    turns = Turns(size, Plain(place, dataset, size, device), session.reporter)
    LOOPS[size.loop](session, dataset, size, turns)
    around = [(before + after) / 2 for before, after in itertools.pairwise(turns.theirs)]
    return list(zip(turns.ours[1:], around, strict=True))[size.pairs // 10 :], turns.waits


def rank_main(rank: int, size: Size, port: int, folder: str, results: Any) -> None:
    """One rank."""
    agent, mine = socket.socketpair()
    # As in a run the agent is another process: a thread of this one would take the interpreter's lock at each report.
    multiprocessing.get_context("fork").Process(target=_swallow, args=(agent, mine), daemon=True).start()
    agent.close()
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    if size.gpus:
        torch.cuda.set_device(size.device(rank))
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group("nccl" if size.gpus else "gloo", store=store, rank=rank, world_size=size.ranks)
    channel = Channel(mine)
    paths = RunPaths(Path(folder))
    spec = RunSpec.read(paths.spec)
    place = WorkerPlace(rank=rank, local_rank=rank, world_size=size.ranks, spec=spec, paths=paths, channel=channel)
    listen(place, Gate())
    found = in_turns(place, size)
    if rank == 0:
        results.send(found)
    # Its agent ends with it, not before: a worker whose agent has ended is ended at once. Groups are not freed (see loop.py's `_KEPT`).
    os._exit(0)


def _swallow(agent: socket.socket, other: socket.socket) -> None:
    other.close()  # else the end of a rank that is killed would not be seen
    while agent.recv(65536):
        pass


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--loop", choices=LOOPS, default="task", help="whose loop")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--block", type=int, default=20, help="steps in a row")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=1, help="hidden layers")
    parser.add_argument(
        "--cpu", action="store_true", help="main thread's CPU time instead of wall time: for a busy machine"
    )
    values = vars(parser.parse_args())
    global CLOCK
    CLOCK = time.thread_time if values.pop("cpu") else time.perf_counter
    report(measure(Size(**values))[0])


def measure(size: Size) -> tuple[list[tuple[float, float]], dict[str, int]]:
    """Return what rank 0 measured: pairs of seconds per step (ours, plain), and on GPUs how often each waited for the device."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        write_spec(Path(folder), size.ranks)
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        results, sender = context.Pipe(duplex=False)
        workers = [
            context.Process(target=rank_main, args=(rank, size, store.port, folder, sender))
            for rank in range(size.ranks)
        ]
        for worker in workers:
            worker.start()
        sender.close()  # else nobody would be told of ranks that died
        found: tuple[list[tuple[float, float]], dict[str, int]] = results.recv()
        for worker in workers:
            worker.join()
    return found


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
        checkpoint=CheckpointSpec(enabled=False),
    ).write(RunPaths(folder).spec)


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return the median of ``values`` and its 95 % interval (bootstrap)."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), medians[50], medians[1949]


def report(pairs: list[tuple[float, float]]) -> None:
    """Medians, and an interval of the median ratio."""
    middle, low, high = interval([mine / theirs - 1 for mine, theirs in pairs])
    mine, theirs = (statistics.median(column) * 1000 for column in zip(*pairs, strict=True))
    print(f"{len(pairs)} pairs: ours {mine:.3f} ms per step, plain DDP {theirs:.3f} ms")
    more, least, most = interval([(mine - theirs) * 1e6 for mine, theirs in pairs])
    print(f"more a step: {more:.1f} µs (95 %: {least:.1f} to {most:.1f})")
    print(f"overhead {100 * middle:+.2f} % (95 %: {100 * low:+.2f} to {100 * high:+.2f})")


if __name__ == "__main__":
    main()
