"""kill -9 of one of 8 workers to the next round's first all-reduce, and the parts of it; fork to running Python.

    python benchmarks/rounds.py [--workers 8] [--times 10]

Real agent, real leader, on this machine; workers run a function (gloo). Say how loaded the machine was.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from launcher.run import events
from launcher.run.paths import RunPaths
from launcher.run.spec import RestartSpec, RunSpec, Work

CODE = """
import os, time
t0 = time.time()
import torch, torch.distributed as dist

def main(worker):
    t1 = time.time()
    x = torch.ones(1)
    dist.all_reduce(x)
    t2 = time.time()
    assert x.item() == dist.get_world_size()
    with open(os.environ["STAMPS"], "a") as f:
        f.write(f'{os.environ["LAUNCHER_ROUND"]} {worker.rank} {os.getpid()} {t0} {t1} {t2}\\n')
    while True:
        time.sleep(60)
"""


def make_run(root: Path, workers: int) -> RunPaths:
    """A run directory as the submitting command would leave it."""
    paths = RunPaths(root)
    paths.code.mkdir(parents=True)
    (paths.code / "bench.py").write_text(CODE)
    paths.secret.write_text(os.urandom(32).hex())
    RunSpec(
        id=root.name,
        name="bench",
        run_dir=str(root),
        work=Work(kind="function", target="bench:main"),
        batch="local",
        nodes=1,
        tasks_per_node=workers,
        timeout_min=60,
        backend="gloo",
        control_ports=list(range(23000, 23050)),
        code_dir=str(paths.code),
        restart=RestartSpec(max_restarts=1000),
        variables={"STAMPS": str(root / "stamps")},
        preflight=False,
    ).write(paths.spec)
    return paths


def stamps(paths: RunPaths, round_: int, workers: int) -> list[list[float]]:
    """Wait for all workers' stamps of a round: rank, pid, running, group up, reduced."""
    while True:
        try:
            rows = [[float(x) for x in line.split()] for line in (paths.root / "stamps").read_text().splitlines()]
        except (OSError, ValueError):
            rows = []
        mine = [row[1:] for row in rows if row[0] == round_ and len(row) == 6]
        if len(mine) == workers:
            return mine
        time.sleep(0.005)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--times", type=int, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = make_run(Path(folder) / "bench-0", given.workers)
        command = [sys.executable, "-m", "launcher.runtime.agent", str(paths.root), "--node", "0"]
        begun = time.time()
        agent = subprocess.Popen(command, stderr=(paths.root / "agent.log").open("w"))
        try:
            first = stamps(paths, 0, given.workers)
            print(f"start to first all-reduce of {given.workers}: {max(r[4] for r in first) - begun:.2f} s")
            whole, parts = [], []
            for number in range(given.times):
                now = stamps(paths, number, given.workers)
                time.sleep(0.5)
                victim = now[number % given.workers]
                killed = time.time()
                os.kill(int(victim[1]), signal.SIGKILL)
                after = stamps(paths, number + 1, given.workers)
                whole.append(max(r[4] for r in after) - killed)
                told = {e["type"]: e["t"] for e in events.read(paths.events) if e.get("round") == number}
                started = next(
                    e["t"]
                    for e in events.read(paths.events)
                    if e["type"] == "round_started" and e.get("round") == number + 1
                )
                parts.append(
                    [
                        told["round_ended"] - killed,
                        started - told["round_ended"],
                        max(r[2] for r in after) - started,
                        max(r[3] for r in after) - max(r[2] for r in after),
                        max(r[4] for r in after) - max(r[3] for r in after),
                    ]
                )
        finally:
            agent.kill()
            agent.wait()
        names = ["ended and cleared", "store up, round ordered", "all forked, running", "group up", "reduced"]
        print(f"kill -9 to the next all-reduce: median {statistics.median(whole):.3f} s, max {max(whole):.3f} s")
        for name, values in zip(names, zip(*parts, strict=True), strict=True):
            print(f"  {name:24} {statistics.median(values):.3f} s")
        print(json.dumps({"whole_s": [round(w, 3) for w in whole], "load": os.getloadavg()}))


if __name__ == "__main__":
    main()
