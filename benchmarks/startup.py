#!/usr/bin/env python3
"""Submission to first optimizer step of 16 workers on 4 hosts: the launcher beside srun and torchrun.

    slurm/cluster up && eval "$(slurm/cluster env)" && .venv/bin/python benchmarks/startup.py --turns 5

The ways take turns, so that a busy moment hits them alike; every way runs the same worker and is submitted by sbatch
(the launcher's own command line, plan and snapshot are inside its time). The figure of one start is when the
*last* rank has taken its step. Beside it: how many processes of each host imported torch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
NODES, PER_NODE = 4, 4
LIMIT_S = 300


def environment(out: Path) -> dict[str, str]:
    """What every way's processes find: where to write, the counter of imports, one thread a rank."""
    return {"STARTUP_OUT": str(out), "PYTHONPATH": str(HERE / "count_imports"), "OMP_NUM_THREADS": "1"}


def batch(out: Path, tasks_per_node: int, command: str) -> None:
    """Submit ``command`` (run once per task) as a SLURM job of its own."""
    port = random.randint(20000, 32000)
    exports = "\n".join(f"export {k}={shlex.quote(v)}" for k, v in environment(out).items())
    script = f"""#!/bin/bash
#SBATCH --job-name=startup --nodes={NODES} --ntasks-per-node={tasks_per_node} --cpus-per-task={PER_NODE // tasks_per_node}
#SBATCH --time=10 --output={out}/slurm.log --chdir={HERE}
{exports}
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1) MASTER_PORT={port}
srun --kill-on-bad-exit=1 {command}
"""
    subprocess.run(["sbatch"], input=script, text=True, check=True, stdout=subprocess.DEVNULL)


def with_srun(out: Path) -> None:
    """One srun task per rank: each its own python, each its own import of torch."""
    batch(out, PER_NODE, f"{shlex.quote(sys.executable)} startup_job/first_step.py")


def with_torchrun(out: Path) -> None:
    """One torchrun per node, c10d rendezvous at the first host."""
    torchrun = f"{shlex.quote(sys.executable)} -m torch.distributed.run --nnodes {NODES} --nproc-per-node {PER_NODE}"
    # The endpoint is a variable of the batch script, known on the node alone.
    batch(
        out,
        1,
        f"{torchrun} --rdzv-backend c10d --rdzv-id startup --rdzv-endpoint $MASTER_ADDR:$MASTER_PORT startup_job/first_step.py",
    )


def with_launcher(out: Path) -> None:
    """``launcher submit``, as a user types it."""
    variables = [f"environment.variables.{k}={json.dumps(v)}" for k, v in environment(out).items()]
    command = [str(Path(sys.executable).with_name("launcher")), "submit", str(HERE / "startup_job" / "job.yaml")]
    subprocess.run(
        [*command, "--backend", "slurm", f"runs_dir={out}/runs", *variables], check=True, stdout=subprocess.DEVNULL
    )


WAYS: dict[str, Callable[[Path], None]] = {"launcher": with_launcher, "srun": with_srun, "torchrun": with_torchrun}


def measure(way: str) -> tuple[float, Counter[str]]:
    """Seconds from submission to the last rank's first step, and imports of torch per host."""
    with tempfile.TemporaryDirectory(prefix="startup-", dir=Path.home()) as folder:
        out = Path(folder)
        begun = time.time()
        WAYS[way](out)
        deadline = begun + LIMIT_S
        ranks = [out / f"rank-{rank}" for rank in range(NODES * PER_NODE)]
        while not all(file.exists() and file.read_text() for file in ranks):
            if time.time() > deadline:
                raise SystemExit(f"{way}: no first step within {LIMIT_S} s; {out}/slurm.log: {log(out)}")
            time.sleep(0.05)
        last = max(float(file.read_text()) for file in ranks)
        wait_for_idle()
        hosts = Counter(line.split()[0] for line in (out / "imports").read_text().splitlines())
        return last - begun, hosts


def log(out: Path) -> str:
    """What the job said, for the one who has to find out why."""
    return "\n".join(p.read_text(errors="replace")[-2000:] for p in out.rglob("*.log"))


def wait_for_idle() -> None:
    """Until this user's jobs are gone: the next start finds an empty cluster."""
    deadline = time.time() + LIMIT_S
    while subprocess.run(["squeue", "-h", "--me"], capture_output=True, text=True, check=True).stdout.strip():
        if time.time() > deadline:
            raise SystemExit("the last job does not end")
        time.sleep(0.2)


def main() -> None:
    """Measure in turns and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    args = parser.parse_args()
    times: dict[str, list[float]] = {way: [] for way in args.ways}
    imports: dict[str, Counter[str]] = {}
    for turn in range(args.turns):
        for way in args.ways:
            seconds, imports[way] = measure(way)
            times[way].append(seconds)
            print(f"turn {turn + 1} {way:9} {seconds:6.2f} s", file=sys.stderr, flush=True)
    print(f"{NODES * PER_NODE} workers on {NODES} hosts, submission to first optimizer step, {os.cpu_count()} cores\n")
    print("| way | median (s) | min | max | torch imports per host |\n| --- | --- | --- | --- | --- |")
    for way, values in times.items():
        per_host = sorted(set(imports[way].values()))
        print(f"| {way} | {statistics.median(values):.2f} | {min(values):.2f} | {max(values):.2f} | {per_host} |")
    others = [statistics.median(v) for way, v in times.items() if way != "launcher"]
    if "launcher" in times and others:
        print(
            f"\nthe launcher is {min(others) / statistics.median(times['launcher']):.1f} times faster than the better of the others"
        )


if __name__ == "__main__":
    main()
