"""kill -9 of one worker to the first optimizer step beyond the one it died in: all of it, and its parts.

    python benchmarks/rounds.py [--workers 8] [--times 20]

Real agent, real leader, a real task with checkpoints, on this machine (gloo). The victim and the moment are random. The
steps between the checkpoint and the one it died in are done again in that time; they are told apart, as they depend on the
checkpoint interval and the step time alone. Say how loaded the machine was.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from launcher.run.files import read_lines
from launcher.run.paths import RunPaths
from launcher.run.spec import CheckpointSpec, RestartSpec, RunSpec, Work

CODE = """
import os, time
import torch
import launcher

class Bench(launcher.Training):
    epochs, batch_size, scheduler_every = 1000, 8, "step"

    def __init__(self, step_s):
        self.step_s = step_s
        self.stamps = open(os.environ["STAMPS"], "a", buffering=1)

    def model(self):
        return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def train_data(self):
        return torch.utils.data.TensorDataset(torch.randn(8000, 32), torch.randn(8000, 1))

    def loss(self, model, batch):
        time.sleep(self.step_s)
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

    def optimizer(self, model):
        adam = torch.optim.AdamW(model.parameters())
        adam.register_step_post_hook(lambda adam, args, kwargs: self.stamp(adam))
        return adam

    def stamp(self, adam):
        step = int(next(iter(adam.state.values()))["step"])
        self.stamps.write(f'{os.environ["LAUNCHER_ROUND"]} {os.environ["RANK"]} {os.getpid()} {step} {time.time()}\\n')
"""
SAVE_EVERY = 10
Stamps = dict[int, dict[int, dict[int, float]]]
"""round: step: rank: when that rank had done that step."""


def make_run(root: Path, workers: int, step_s: float) -> RunPaths:
    """A run directory as the submitting command would leave it."""
    paths = RunPaths(root)
    paths.code.mkdir(parents=True)
    (paths.code / "bench.py").write_text(CODE)
    paths.secret.write_text(os.urandom(32).hex())
    RunSpec(
        id=root.name,
        name="bench",
        run_dir=str(root),
        work=Work(kind="task", target="bench:Bench", params={"step_s": step_s}),
        batch="local",
        nodes=1,
        tasks_per_node=workers,
        timeout_min=60,
        backend="gloo",
        port_range=[23000, 23049],
        code_dir=str(paths.code),
        restart=RestartSpec(max_restarts=1000),
        checkpoint=CheckpointSpec(interval_steps=SAVE_EVERY),
        variables={"STAMPS": str(root / "stamps")},
        preflight=False,
    ).write(paths.spec)
    return paths


class Reader:
    """The stamps so far, read as they come."""

    def __init__(self, path: Path, workers: int) -> None:
        self.path, self.workers = path, workers
        self.steps: Stamps = {}
        self.pids: dict[tuple[int, int], int] = {}
        self._at = 0

    def read(self) -> None:
        """Take in what has been written since."""
        with open(self.path) as f:
            f.seek(self._at)
            text = f.read()
        whole = text[: text.rfind("\n") + 1]
        self._at += len(whole.encode())
        for line in whole.splitlines():
            round_, rank, pid, step, t = line.split()
            self.steps.setdefault(int(round_), {}).setdefault(int(step), {})[int(rank)] = float(t)
            self.pids[int(round_), int(rank)] = int(pid)

    def wait(self, round_: int, least: int) -> int:
        """Wait until every rank has done some step >= ``least`` in a round; returns the first such step."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            self.read()
            done = [s for s, ranks in self.steps.get(round_, {}).items() if len(ranks) == self.workers and s >= least]
            if done:
                return min(done)
            time.sleep(0.002)
        raise SystemExit(f"round {round_} did not come to step {least}")

    def done(self, round_: int, step: int) -> float:
        """When the last rank had done the step."""
        return max(self.steps[round_][step].values())


def one(paths: RunPaths, reader: Reader, number: int, chance: random.Random) -> list[float]:
    """Kill a worker of round ``number``; seconds of each part of the recovery."""
    reader.wait(number, reader.wait(number, 0) + SAVE_EVERY + chance.randrange(SAVE_EVERY))
    time.sleep(chance.random() * 0.05)
    rank = chance.randrange(reader.workers)
    killed = time.time()
    os.kill(reader.pids[number, rank], signal.SIGKILL)
    first = reader.wait(number + 1, 0)
    died_in = 1 + max(s for s, ranks in reader.steps[number].items() if rank in ranks)
    beyond = reader.wait(number + 1, died_in + 1)
    told = {(e["type"], e.get("round")): e["t"] for e in read_lines(paths.events)}
    ended, started = told["round_ended", number], told["round_started", number + 1]
    again = reader.done(number + 1, died_in) if died_in >= first else reader.done(number + 1, first)
    moments = [killed, ended, started, reader.done(number + 1, first), again, reader.done(number + 1, beyond)]
    return [b - a for a, b in pairwise(moments)]


NAMES = ("ended and cleared", "store up, round ordered", "forked, group, load, 1 step", "steps done again", "the step")


def report(parts: list[list[float]]) -> None:
    """Print medians."""
    whole = [sum(p) for p in parts]
    without = [sum(p) - p[3] for p in parts]
    print(f"kill -9 to the first step beyond: median {statistics.median(whole):.3f} s, max {max(whole):.3f} s")
    print(f"without the steps done again:     median {statistics.median(without):.3f} s, max {max(without):.3f} s")
    for name, values in zip(NAMES, zip(*parts, strict=True), strict=True):
        print(f"  {name:28} {statistics.median(values):.3f} s")
    print(json.dumps({"without_s": [round(w, 3) for w in without], "load": os.getloadavg()}))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--step-s", type=float, default=0.02, help="what a step sleeps")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = make_run(Path(folder) / "bench-0", given.workers, given.step_s)
        reader = Reader(paths.root / "stamps", given.workers)
        reader.path.touch()
        command = [sys.executable, "-m", "launcher.node.agent", str(paths.root), "--node", "0"]
        agent = subprocess.Popen(command, stderr=(paths.root / "agent.log").open("w"))
        chance = random.Random(1)
        try:
            report([one(paths, reader, number, chance) for number in range(given.times)])
        finally:
            agent.kill()
            agent.wait()


if __name__ == "__main__":
    main()
