"""kill -9 of an agent, of the leader, of all agents, to the next new optimizer step, on the real cluster; and the same with SIGSTOP.

    python benchmarks/revivals.py [--times 10] [--nodes 4] [--container]

Each kind in turn, after a checkpoint of the round. The new process imports torch: on this cluster all hosts are one machine, so the
import has its two cores almost to itself where one agent died, and shares them where all did. Say how loaded the machine was.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import contained
import inflict
from cluster import Cluster, own_directory
from harness import Run, submit

SAVE_EVERY = 5


def _strike(number: int, *nodes: int) -> Callable[[Run], None]:
    def strike(run: Run) -> None:
        agents = inflict.agents(run)
        for node in nodes or sorted(agents, reverse=True):
            agents[node].send_signal(number)

    return strike


KINDS: dict[str, Callable[[Run], None]] = {
    "agent killed": _strike(signal.SIGKILL, 1),
    "leader killed": _strike(signal.SIGKILL, 0),
    "all agents killed": _strike(signal.SIGKILL),
    "agent stopped (SIGSTOP)": _strike(signal.SIGSTOP, 1),
    "leader stopped (SIGSTOP)": _strike(signal.SIGSTOP, 0),
}
EVENTS = ("round_ended", "leader_revived", "agent_revived", "decision", "round_started", "first_step")


def one(run: Run, kind: str) -> tuple[float, dict[str, float]]:
    """Seconds from the blow to the first step of the next round, and when each event came."""
    number = len(run.told("round_started"))
    run.wait("a checkpoint of the round", lambda: run.told("saved", round=number - 1))
    began = time.time()
    KINDS[kind](run)
    run.wait("the next round's first step", lambda: len(run.told("first_step")) > number)
    later = [e for e in run.history() if e["t"] > began]
    first = {name: next((round(e["t"] - began, 2) for e in later if e["type"] == name), None) for name in EVENTS}
    return float(first["first_step"] or 0.0), {k: v for k, v in first.items() if v is not None}


def _in_image(cluster: Cluster, room: Path) -> dict[str, Any]:
    """`environment` of a job in an image."""
    command = contained.apptainer()
    if command is None:
        raise SystemExit("there is no Apptainer here: .ci/apptainer installs it")
    cluster.env["PATH"] = f"{Path(command).parent}:{cluster.env['PATH']}"
    image, args = contained.build_image(command, room)
    return {"container": str(image), "container_args": args, "python": sys.executable}


def main() -> int:
    """Measure and print; 1 when the run needed another attempt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--container", action="store_true", help="agents and workers are in an image, by Apptainer")
    args = parser.parse_args()
    job: dict[str, Any] = {
        "params": {"epochs": 1000, "step_s": 0.1},
        "resources": {"nodes": args.nodes, "tasks_per_node": 2, "timeout_min": 120},
        "checkpoint": {"interval_steps": SAVE_EVERY},
    }
    took = defaultdict(list)
    with own_directory() as directory, tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(directory)
        cluster.verb("down")
        cluster.verb("up")
        if args.container:
            job["environment"] = _in_image(cluster, Path(folder))
        try:
            run = submit(Path(folder), cluster.env, 8, **job)
            run.wait_saved(1)
            for _ in range(args.times):
                for kind in KINDS:
                    seconds, parts = one(run, kind)
                    took[kind].append(seconds)
                    print(f"{kind:26} {seconds:6.2f} s  {json.dumps(parts)}  load {os.getloadavg()[0]:.1f}", flush=True)
            attempts = len(run.told("attempt_started"))
            cluster.run(["scancel", run.job_id])
            run.wait_end()
        finally:
            cluster.verb("down")
    for kind, times in took.items():
        print(f"{kind:26} median {statistics.median(times):5.2f} s, max {max(times):5.2f} s, {len(times)} times")
    print(f"attempts: {attempts}")
    return int(attempts != 1)


if __name__ == "__main__":
    sys.exit(main())
