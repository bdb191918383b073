"""What trackers cost a step: one real run whose tracker process is stopped and let go on in turns (SIGSTOP, SIGCONT).

    python benchmarks/trackers.py [--ranks 1] [--seconds 2] [--turns 60]

The run logs five numbers a step to TensorBoard, to Weights & Biases (offline) and to a real MLflow server on SQLite, which runs
on this machine too (elsewhere it would not). A stopped process does later what it did not do, so that the turns in which it
goes on carry all of its work. Each such turn's median step is compared with the mean of the turns before and after it. Prints
the median of these ratios, a 95 % interval (bootstrap), and the processor time of the trackers.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from mlflow_server import Server

from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome

WARM_S = 15.0


def job(ranks: int, uri: str) -> dict[str, object]:
    """The measured job; the trackers are told what a leader writes, a line a step at most."""
    return {
        "name": "tracked",
        "function": "train:train",
        "code": {"dir": str(Path(__file__).parent / "trackers_job")},
        "resources": {"tasks_per_node": ranks},
        "checkpoint": {"enabled": False},
        "preflight": False,
        "trackers": {
            "tensorboard": True,
            "wandb": {"project": "bench", "mode": "offline"},
            "mlflow": {"uri": uri, "experiment": "bench"},
        },
    }


def submit(folder: Path, ranks: int, uri: str) -> RunPaths:
    """Hand it to this machine; returns once steps are done."""
    (folder / "job.yaml").write_text(json.dumps(job(ranks, uri)))
    command = [sys.executable, "-m", "launcher", "submit", str(folder / "job.yaml"), "--backend", "local"]
    subprocess.run(command, env=environment(folder), check=True, capture_output=True)
    (root,) = (p for p in (folder / "runs").iterdir() if not p.name.startswith("."))
    while not (root / "steps-0.txt").exists():
        if (outcome := read_outcome(root / "outcome.json")) is not None:
            raise SystemExit(f"the run ended: {outcome['reason']}")
        time.sleep(0.2)
    return RunPaths(root)


def environment(folder: Path) -> dict[str, str]:
    """A home of its own for runs."""
    return {**os.environ, "LAUNCHER_RUNS_DIR": str(folder / "runs"), "XDG_STATE_HOME": str(folder / "state")}


def trackers(paths: RunPaths) -> list[psutil.Process]:
    """The trackers' process and what it started (Weights & Biases has one of its own)."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "launcher.node.sidecars.trackers" in words and str(paths.root) in words:
            found += [process, *process.children(recursive=True)]
    return found


def take_turns(found: list[psutil.Process], seconds: float, turns: int) -> list[tuple[float, float, bool]]:
    """Begin and end of each turn, and whether the trackers went on in it; a moment around each change counts for none."""
    spans = []
    for turn in range(2 * turns + 1):
        runs = turn % 2 == 1
        for process in found:
            process.resume() if runs else process.suspend()
        begin = time.time()
        time.sleep(seconds)
        spans.append((begin + 0.05, time.time(), runs))
    for process in found:
        process.resume()
    return spans


def compare(ends: list[float], spans: list[tuple[float, float, bool]]) -> tuple[list[float], list[float]]:
    """Ratios, pair by pair, and the step times without trackers, in seconds."""
    medians = []
    for begin, end, _ in spans:
        inside = ends[bisect.bisect_left(ends, begin) : bisect.bisect_right(ends, end)]
        medians.append(statistics.median(b - a for a, b in itertools.pairwise(inside)))
    ratios = [2 * medians[i] / (medians[i - 1] + medians[i + 1]) for i in range(1, len(spans) - 1, 2)]
    return ratios, medians[::2]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a turn")
    parser.add_argument("--turns", type=int, default=60)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="trackers-", dir="/var/tmp"))
    server, paths = Server(folder), None
    try:
        paths = submit(folder, arguments.ranks, server.uri)
        time.sleep(WARM_S)
        found = trackers(paths)
        before = sum(sum(p.cpu_times()[:2]) for p in found)
        spans = take_turns(found, arguments.seconds, arguments.turns)
        spent = sum(sum(p.cpu_times()[:2]) for p in found) - before
    finally:
        if paths is not None:
            subprocess.run([sys.executable, "-m", "launcher", "cancel", paths.id], env=environment(folder), check=False)
        server.kill()
    ends = [float(line) for line in (paths.root / "steps-0.txt").read_text().split()]
    ratios, alone = compare(ends, spans)
    spread = sorted(statistics.median(random.Random(i).choices(ratios, k=len(ratios))) for i in range(2000))
    low, high = (100 * (spread[i] - 1) for i in (50, 1949))
    print(
        f"{arguments.ranks} ranks, {1000 * statistics.median(alone):.2f} ms a step, {len(found)} tracker processes, {len(ratios)} turns:"
    )
    print(
        f"  a step takes {100 * (statistics.median(ratios) - 1):+.2f} % (95 %: {low:+.2f} to {high:+.2f}) beside the trackers"
    )
    print(f"  they used {100 * spent / (spans[-1][1] - spans[0][0]):.1f} % of a core")


if __name__ == "__main__":
    main()
