"""How long ``ls`` and ``status`` take over many runs. Usage: benchmarks/many_runs.py [--runs 10000] [--tries 5].

Makes run directories in a temporary folder: 95 % ended, 4 % pending, 1 % running, half of all as points of one sweep.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def make(root: Path, number: int, now: float) -> None:
    """``number`` runs below ``root``."""
    sweep = root / "lr-sweep-1121-0900-swp"
    sweep.mkdir()
    points = []
    for i in range(number):
        in_sweep = i % 2 == 0
        name = f"lr-{i}-1121-0900-swp{i:04d}" if in_sweep else f"run{i}-1121-0842-{i:05x}"
        run = (sweep if in_sweep else root) / name
        run.mkdir()
        if in_sweep:
            points.append({"run": name, "overrides": [f"params.lr={i}"]})
        write(run, i, now)
    (sweep / "sweep.json").write_text(json.dumps({"points": points}))


def write(run: Path, i: int, now: float) -> None:
    """The files of run ``i``: one in a hundred runs, four wait, the others have ended."""
    t = now - 7200
    spec = {"name": "run", "nodes": 2, "tasks_per_node": 4, "timeout_min": 60, "batch": "slurm"}
    (run / "spec.json").write_text(json.dumps(spec))
    events = [{"t": t, "type": "submitted", "attempt": None, "job_id": str(i), "backend": "slurm"}]
    kind = i % 100
    if kind >= 4:
        events.append({"t": t + 5, "type": "attempt_started", "attempt": 0, "job_id": str(i), "host": "n1"})
        events += [{"t": t + 60 * k, "type": "saved", "attempt": 0, "round": 0, "step": 100 * k} for k in range(1, 60)]
    if kind == 4:
        state = {"t": now + 3600, "attempt": 0, "round": 0, "step": 5000, "total_steps": 9000, "rate": 2.0}
        (run / "state.json").write_text(json.dumps(state))
    with (run / "events.jsonl").open("w") as f:
        f.writelines(json.dumps(e) + "\n" for e in events)
    if kind > 4:
        outcome = {"state": "completed", "reason": "", "step": 9000, "t": now - 5, "metrics": {"loss": i / 1000}}
        (run / "outcome.json").write_text(json.dumps(outcome))
        os.utime(run / "events.jsonl", (now - 5, now - 5))


def measure(command: list[str], environment: dict[str, str], tries: int) -> list[float]:
    """Seconds of each try."""
    times = []
    for _ in range(tries):
        begin = time.perf_counter()
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - begin)
    return times


def main() -> None:
    """Make the runs, time the verbs, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--tries", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder, "runs")
        runs.mkdir()
        make(runs, options.runs, time.time())
        environment = {**os.environ, "LAUNCHER_RUNS_DIR": str(runs), "HOME": folder, "XDG_STATE_HOME": folder}
        environment.pop("SLURM_CONF", None)
        for verb in (["ls"], ["ls", "--sweep", "swp"], ["ls", "--json"], ["status"]):
            command = [sys.executable, "-m", "launcher", *verb]
            times = measure(command, environment, options.tries)
            print(f"launcher {' '.join(verb):<16} median {statistics.median(times):.2f} s, worst {max(times):.2f} s")


if __name__ == "__main__":
    main()
