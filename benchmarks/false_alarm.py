"""No false alarm: a job that is slow in every way a sound one may be, under a hang floor far below its pauses.

    eval "$(slurm/cluster env)"; python benchmarks/false_alarm.py [--minutes 32] [--floor 5] [--out DIR]

Three ranks on three hosts: steps one in eight of which takes 2 to 20 times as long, a first step of a minute, saves whose
state takes 12 s to bring together and whose disk takes 8 s an fsync, evaluations in which two ranks wait 48 s for the third,
pauses between epochs. After --minutes the run is ended with `launcher cancel --save`. Exits 1 when there was a hang, a
second round or a failure. Prints how long the pauses were that had to be believed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from launcher.run.files import read_lines
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome

JOB: dict[str, Any] = {
    "name": "false-alarm",
    "task": "irregular:Irregular",
    "code": {"dir": str(Path(__file__).parent / "false_alarm_job")},
    "resources": {"nodes": 3, "tasks_per_node": 1, "timeout_min": 90},
    "checkpoint": {"interval_min": 1.5},
    "restart": {"requeue": False},
    "preflight": False,
}


def launcher(*words: str, env: dict[str, str]) -> str:
    """What one of the launcher's verbs prints."""
    command = [sys.executable, "-m", "launcher", *words]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


def wait(paths: RunPaths, minutes: float) -> list[dict[str, Any]]:
    """The history after that long, or at the run's end if that comes first."""
    end = time.monotonic() + minutes * 60
    while time.monotonic() < end and read_outcome(paths.outcome) is None:
        time.sleep(2)
    return read_lines(paths.events)


def pauses(paths: RunPaths, floor_s: float) -> None:
    """Print what had to be believed."""
    found: dict[str, list[float]] = defaultdict(list)
    for path in paths.root.glob("pauses-*.txt"):
        for line in path.read_text().splitlines():
            kind, _, seconds = line.rpartition(" ")
            found[kind].append(float(seconds))
    for kind, all_ in sorted(found.items()):
        beyond = sum(s > floor_s for s in all_)
        print(f"  {kind:17} {len(all_):5} pauses, {beyond} beyond the floor, longest {max(all_):.1f} s")


def main() -> int:
    """Run, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=32)
    parser.add_argument("--floor", type=float, default=5.0)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    folder = args.out or Path(tempfile.mkdtemp(prefix="false-alarm-", dir="/var/tmp"))
    folder.mkdir(parents=True, exist_ok=True)
    job = folder / "job.yaml"
    job.write_text(json.dumps({**JOB, "restart": {**JOB["restart"], "hang_floor_s": args.floor}}))
    env = {**os.environ, "LAUNCHER_RUNS_DIR": str(folder / "runs"), "XDG_STATE_HOME": str(folder / "state")}
    launcher("submit", str(job), env=env)
    (root,) = (p for p in (folder / "runs").iterdir() if not p.name.startswith("."))
    paths = RunPaths(root)
    history = wait(paths, args.minutes)
    if read_outcome(paths.outcome) is None:
        launcher("cancel", root.name, "--save", env=env)
        history = wait(paths, 5)
    count = Counter(e["type"] for e in history)
    step = (read_outcome(paths.outcome) or {}).get("step")
    print(
        f"{args.minutes:g} min under a floor of {args.floor:g} s: {step} steps, {count['saved']} saves, {count['evaluated']}"
        f" evaluations; hangs {count['hang']}, rounds {count['round_started']}, failures {count['worker_failed']}"
    )
    pauses(paths, args.floor)
    bad = count["hang"] + count["worker_failed"] + count["node_lost"] + count["round_started"] - 1
    return 1 if bad or not step else 0


if __name__ == "__main__":
    sys.exit(main())
