"""How soon a job that gives its allocation back runs again, on a cluster of its own with SLURM's default scheduler.

    python benchmarks/requeue.py [--times 30] [--nodes 2] [--way last|early|leader]      # a bare job that requeues itself
    python benchmarks/requeue.py --run [--times 30] [--nodes 2]                           # a real run that is preempted

A gap begins when the last process of the job (its batch script) has ended. A bare job's ends with the first process of
its next life; a run's with the new leader, and with the first step of the new workers. ``--way last`` is what the launcher
does: the batch script's last process says StartTime, at the moment that `launcher.slurm.restart` waits for. ``early``: it says
now+2 at once. ``leader``: the step's process says now+3, and nobody does after it. SLURM alone would wait 121 s.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cluster import Cluster
from harness import submit

ROOT = Path(__file__).resolve().parents[1]
LIFE = """
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: None)
from launcher.slurm import handback
from launcher.slurm.environ import job_environ
began, here, last, way = time.time(), job_environ(), int(sys.argv[2]), sys.argv[3]
if os.environ["SLURM_PROCID"] == "0":
    with open(sys.argv[1], "a") as f:
        f.write(json.dumps({"life": here.restart_count, "began": began}) + "\\n")
    time.sleep(2.0)
    if here.restart_count < last:
        done = handback.requeue(here.own_id, restart_count=here.restart_count)
        with open(sys.argv[1] + ".requeued", "w") as f:
            f.write(str(time.time()))
        forward = handback.pull_forward(here.own_id, 3 if way == "leader" else 15)
        assert done.ok and forward.ok, (done, forward)
"""
LAST = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
from launcher.slurm.environ import job_environ
from launcher.slurm.restart import last_act
here, way, asked = job_environ(), sys.argv[1], float(open(sys.argv[2]).read())
words = ("scontrol", "update", f"JobId={here.own_id}", "StartTime=now+2seconds")
if way == "last":
    words = last_act(here.own_id, own_host=here.node_name, requeued_t=asked, has_epilog=False)
if way != "leader":
    os.execvp(words[0], words)
"""


def batch_script(cluster: Cluster, job: str) -> psutil.Process | None:
    """The shell that runs the job's batch script."""
    for process in psutil.process_iter(["cmdline"]):
        if any(w.endswith("/slurm_script") for w in process.info["cmdline"] or ()):
            try:
                env = process.environ()
                if (env.get("SLURM_JOB_ID"), env.get("SLURM_CONF")) == (job, cluster.env["SLURM_CONF"]):
                    return process
            except psutil.Error:
                continue
    return None


def watch(cluster: Cluster, job: str, times: int, limit_s: float) -> list[float]:
    """When the batch script of each life ended, in order."""
    ends: list[float] = []
    seen: set[psutil.Process] = set()
    end = time.monotonic() + limit_s
    while len(ends) < times:
        if time.monotonic() > end:
            raise SystemExit(f"only {len(ends)} requeues within {limit_s:g} s")
        shell = batch_script(cluster, job)
        if shell is not None and shell not in seen:
            seen.add(shell)
            shell.wait(max(1.0, end - time.monotonic()))
            ends.append(time.time())
        time.sleep(0.2)
    return ends


def bare(cluster: Cluster, folder: Path, args: argparse.Namespace) -> dict[str, list[float]]:
    """Requeues of a job that does nothing else."""
    lines = folder / "lives"
    (folder / "life.py").write_text(LIFE)
    (folder / "last.py").write_text(LAST)
    script = folder / "job.sh"
    script.write_text(
        f"#!/bin/bash\n#SBATCH --open-mode=append\n#SBATCH --output={folder}/out\nexport PYTHONPATH={ROOT}\ntrap : TERM\n"
        f"srun --ntasks-per-node=1 {sys.executable} {folder}/life.py {lines} {args.times} {args.way}\n"
        f"trap '' TERM\n{sys.executable} {folder}/last.py {args.way} {lines}.requeued\n"
    )
    job = cluster.sbatch(f"--nodes={args.nodes}", script)

    def began() -> list[float]:
        return [json.loads(x)["began"] for x in lines.read_text().splitlines()] if lines.exists() else []

    ends = watch(cluster, job, args.times, args.limit)
    cluster.wait(lambda: len(began()) > args.times, "the last life", 200)
    return {"old job's end to the new one's first process": [b - e for e, b in zip(ends, began()[1:], strict=True)]}


def real(cluster: Cluster, folder: Path, args: argparse.Namespace) -> dict[str, list[float]]:
    """Preemptions of a run: one of its hosts is wanted, and others are free."""
    job = {"params": {"epochs": 100000, "step_s": 0.05}, "checkpoint": {"interval_steps": 100}}
    spread = {"resources": {"nodes": args.nodes, "tasks_per_node": 2, "timeout_min": 600}}
    run = submit(folder, cluster.env, 2, **job, **spread)

    def when(type_: str, attempt: int) -> float:
        return float(run.wait(f"{type_} of {attempt}", lambda: run.told(type_, attempt=attempt), 300)[-1]["t"])

    ends, stops, leaders, steps = [], [], [], []
    for attempt in range(args.times):
        when("first_step", attempt)
        time.sleep(2.0)
        shell = batch_script(cluster, run.job_id)
        assert shell is not None
        host = run.state()["nodes"][-1]
        cluster.sbatch("-p", "high", "-w", host, "-c", 8, "-o", "/dev/null", wrap="true")
        shell.wait(120)
        ends.append(time.time())
        stops.append(run.told("round_ended", attempt=attempt)[-1]["t"])
        leaders.append(when("attempt_started", attempt + 1))
        steps.append(when("first_step", attempt + 1))
        gap, first = leaders[-1] - ends[-1], steps[-1] - ends[-1]
        print(f"  {attempt}: leader {gap:.1f} s, first step {first:.1f} s", flush=True)
    cluster.run(["scancel", run.job_id])
    run.wait_end()
    return {
        "old job's end to the new leader": [b - a for a, b in zip(ends, leaders, strict=True)],
        "old job's end to the new workers' first step": [b - a for a, b in zip(ends, steps, strict=True)],
        "old workers' end to the new workers' first step": [b - a for a, b in zip(stops, steps, strict=True)],
    }


def show(figures: dict[str, list[float]], cluster: Cluster, args: argparse.Namespace) -> None:
    """The figures, and what they depend on."""
    for what, gaps in figures.items():
        late = sum(g > 100 for g in gaps)
        print(
            f"{what}: {len(gaps)} times, median {statistics.median(gaps):.1f} s, max {max(gaps):.1f} s; over 100 s: {late}"
        )
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    config = cluster.run(["scontrol", "show", "config"]).stdout
    for key in ("SLURM_VERSION", "SchedulerParameters", "SchedulerType", "KillWait", "CompleteWait", "AuthInfo"):
        if found := re.search(rf"^{key} +=.*", config, re.MULTILINE):
            print(f"  {found[0]}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--way", choices=["last", "early", "leader"], default="last")
    parser.add_argument("--run", action="store_true", help="a real run instead of a bare job")
    parser.add_argument("--set", nargs="*", default=["SchedulerParameters=", "KillWait=30"], metavar="KEY=VALUE")
    parser.add_argument("--limit", type=float, default=5000)
    parser.add_argument("--cluster", type=Path, default=Path("/var/lib/launcher-cluster-requeue"))
    args = parser.parse_args()
    cluster = Cluster(args.cluster)
    cluster.verb("up")
    try:
        cluster.set(**dict(word.split("=", 1) for word in args.set))
        with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as folder:
            measured: dict[str, Any] = (real if args.run else bare)(cluster, Path(folder), args)
            show(measured, cluster, args)
    finally:
        cluster.verb("down")


if __name__ == "__main__":
    main()
