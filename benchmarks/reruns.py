"""From `launcher rerun` to the first optimizer step, with 8 workers on 4 hosts of the real cluster; and the same through the queue.

    python benchmarks/reruns.py [--times 10] [--nodes 4] [--tasks 2]

Each time one file of the job's code is edited. `step` is from the command's start to the event first_step, of which the imports of the
job's own code are a part (it imports torch alone). `queue` is the same for `launcher submit` on an idle cluster: the queue costs nothing
there. Say how loaded the machine was.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from cluster import Cluster, own_directory
from harness import JOB, Run, job_text

PARTS = ("submitted", "attempt_started", "round_started", "first_step")


class Bench:
    """A job on the cluster, and the commands of its user."""

    def __init__(self, cluster: Cluster, folder: Path, nodes: int, tasks: int) -> None:
        self.cluster, self.folder, self.runs = cluster, folder, folder / "runs"
        for file in JOB.glob("*.py"):
            (folder / file.name).write_text(file.read_text())
        (folder / "edited.py").write_text("")
        shape = {"nodes": nodes, "tasks_per_node": tasks}
        text = job_text(8, code={"dir": "."}, resources=shape, params={"step_s": 0.01, "epochs": 1})
        (folder / "job.yaml").write_text(text)
        self.env = {
            **os.environ,
            **cluster.env,
            "LAUNCHER_RUNS_DIR": str(self.runs),
            "XDG_STATE_HOME": str(folder / "state"),
        }

    def timed(self, *words: str) -> tuple[dict[str, float], float]:
        """Run one command to its end; return when each part of its run came, and when the command ended, in seconds from its start."""
        before = set(self.runs.iterdir()) if self.runs.exists() else set()
        with (self.folder / "edited.py").open("a") as f:
            f.write(f"# {time.time()}\n")
        began = time.time()
        done = subprocess.run(
            [sys.executable, "-m", "launcher", *words], cwd=self.folder, env=self.env, capture_output=True, text=True
        )
        ended = time.time() - began
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        (new,) = set(self.runs.iterdir()) - before
        return {name: Run(new).told(name)[0]["t"] - began for name in PARTS if Run(new).told(name)}, ended


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--tasks", type=int, default=2)
    args = parser.parse_args()
    took = defaultdict(list)
    with own_directory() as directory, tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(directory)
        cluster.verb("down")
        cluster.verb("up")
        try:
            bench = Bench(cluster, Path(folder), args.nodes, args.tasks)
            for _ in range(max(1, args.times // 3)):
                parts, _ended = bench.timed("submit", "job.yaml", "--wait")
                took["queue"].append(parts["first_step"])
            bench.timed("hold", "job.yaml")
            bench.timed("rerun", "hold-steady")  # waits for the nodes
            for _ in range(args.times):
                parts, ended = bench.timed("rerun", "hold-steady")
                told = "  ".join(f"{name} {seconds:.2f}" for name, seconds in parts.items())
                print(f"{told}  command ended {ended:.2f}  load {os.getloadavg()[0]:.1f}", flush=True)
                took["step"].append(parts["first_step"])
                took["round"].append(parts["round_started"])
            parts, _ended = bench.timed("rerun", "hold-steady", "seed=5")
            took["torch imported again"].append(parts["first_step"])
        finally:
            cluster.verb("down")
    for name, times in took.items():
        print(f"{name:22} median {statistics.median(times):5.2f} s, max {max(times):5.2f} s, {len(times)} times")
    return 0


if __name__ == "__main__":
    sys.exit(main())
