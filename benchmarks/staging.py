#!/usr/bin/env python3
"""What a node asks of the shared file system from its job's start to the first step, with and without `environment.stage`.

    sudo .venv/bin/python benchmarks/staging.py --delay-ms 0 1 --turns 3      (root; needs mfusepy and libfuse3)

The environment (this Python's packages included) and the runs lie on a file system of their own (slow_files.py), which counts each
operation and delays it; each host has mounted it for itself, and has local storage of its own. Jobs have two nodes: the first one also
leads, the other is like any other of a thousand. Both ways take turns; figures are medians.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CLUSTER = HERE.parent / "slurm" / "cluster"
HOSTS = ("node1", "node2")
LIMIT_S = 300
JOB = """
script: first_step.py
resources: {{nodes: 2, tasks_per_node: 2, timeout_min: 10}}
environment: {{python: {python}, stage: {stage}, variables: {{OMP_NUM_THREADS: 1}}}}
runs_dir: {runs}
slurm: {{nodelist: '{hosts}', extra: {{hold: true}}}}
"""
SCRIPT = """
import os, pathlib, torch, torch.distributed as dist
dist.init_process_group()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(4, 8)).sum().backward()
optimizer.step()
pathlib.Path(os.environ["LAUNCHER_RUN_DIR"], f"step-{dist.get_rank()}").touch()
dist.barrier()
dist.destroy_process_group()
"""


@contextlib.contextmanager
def cluster(place: Path) -> Iterator[tuple[dict[str, str], dict[str, list[str]]]]:
    """A cluster of its own; yields the environment of its login host, and what enters each host's mounts."""
    env = {
        **os.environ,
        "LAUNCHER_CLUSTER_DIR": f"/var/lib/{place.name}",
        "HOME": str(place),
        "XDG_STATE_HOME": str(place),
    }
    env.pop("VIRTUAL_ENV", None)
    subprocess.run([CLUSTER, "up"], env=env, check=True, stdout=subprocess.DEVNULL)
    try:
        said = subprocess.run(
            ["bash", "-c", f"eval \"$('{CLUSTER}' env)\"; env -0"], env=env, check=True, capture_output=True
        )
        env = dict(line.split("=", 1) for line in said.stdout.decode().split("\0") if line)
        pattern = re.search(r"^SlurmdPidFile=(\S+)", Path(env["SLURM_CONF"]).read_text(), re.MULTILINE)
        assert pattern is not None
        pids = {host: Path(pattern[1].replace("%n", host)).read_text().strip() for host in HOSTS}
        yield env, {host: ["nsenter", f"--target={pid}", "--mount", "--"] for host, pid in pids.items()}
    finally:
        subprocess.run([CLUSTER, "down"], env=env, check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def mounted(place: Path, enter: dict[str, list[str]], delay_ms: float) -> Iterator[dict[str, int]]:
    """Show the folder ``back`` as ``shared``, and on every host a folder of its own as ``local``; yields the servers' pids.

    The login host, which packs the environment once, has ``shared`` at full speed.
    """
    with contextlib.ExitStack() as stack:
        subprocess.run(["mount", "--bind", place / "back", place / "shared"], check=True)
        stack.callback(subprocess.run, ["umount", "-l", place / "shared"], check=True)
        servers = {}
        for host, prefix in enter.items():
            own = place / f"local-{host}"
            own.mkdir(exist_ok=True)
            subprocess.run([*prefix, "mount", "--bind", own, place / "local"], check=True)
            stack.callback(subprocess.run, [*prefix, "umount", "-l", place / "local"], check=True)
            words = [place / "back", place / "shared", "--delay-ms", str(delay_ms), "--counts", place / f"{host}.json"]
            server = subprocess.Popen([*prefix, sys.executable, HERE / "slow_files.py", *words])
            stack.callback(server.wait)
            stack.callback(subprocess.run, [*prefix, "umount", "-l", place / "shared"], check=False)
            shows = [*prefix, "mountpoint", "-q", str(place / "shared")]
            while subprocess.run(shows, check=False).returncode:
                if server.poll() is not None:
                    raise RuntimeError(f"the file system for {host} did not start")
                time.sleep(0.05)
            # As NFS clients are tuned where files are large: the kernel's own 128 kB would read them one answer after the other.
            device = subprocess.run(
                [*prefix, "mountpoint", "-d", place / "shared"], check=True, capture_output=True, text=True
            )
            Path(f"/sys/class/bdi/{device.stdout.strip()}/read_ahead_kb").write_text("8192")
            servers[host] = server.pid
        yield servers


def until(happened: Any) -> None:
    """Wait for an event that nothing announces."""
    give_up = time.monotonic() + LIMIT_S
    while not happened():
        if time.monotonic() > give_up:
            raise TimeoutError
        time.sleep(0.005)


def counts(place: Path, servers: dict[str, int]) -> dict[str, dict[str, int]]:
    """The operations of each host since the last call."""
    told = {host: place / f"{host}.json" for host in servers}
    for host, pid in servers.items():
        told[host].unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR1)
    until(lambda: all(path.exists() for path in told.values()))
    return {host: json.loads(path.read_text()) for host, path in told.items()}


def one_start(place: Path, env: dict[str, str], servers: dict[str, int], way: str) -> dict[str, float]:
    """Submit one job, and tell what its nodes asked for until its last rank's first step."""
    stage = "false" if way == "plain" else place / "local"
    text = JOB.format(
        python=place / "shared/env/bin/python", stage=stage, runs=place / "shared/runs", hosts=",".join(HOSTS)
    )
    (place / "job" / "job.yaml").write_text(text)
    said = subprocess.run(
        [sys.executable, "-m", "launcher", "submit", "job.yaml"],
        env={**env, "PYTHONPATH": str(HERE.parent)}, cwd=place / "job", check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    run = place / "back/runs" / said.split()[0]
    job = json.loads((run / "submission.json").read_text())["job_id"]
    counts(place, servers)
    began = time.monotonic()
    subprocess.run(["scontrol", "release", job], env=env, check=True)
    until(lambda: all((run / f"step-{rank}").exists() for rank in range(4)))
    took, asked = time.monotonic() - began, counts(place, servers)
    until((run / "outcome.json").exists)
    until(lambda: not subprocess.run(["squeue", "-h", "-j", job], env=env, capture_output=True, check=False).stdout)
    figures: dict[str, float] = {"seconds": took}
    for name, host in zip(("first", "other"), HOSTS, strict=True):
        of = asked[host]
        figures[f"{name}_opens"] = of.get("open", 0) + of.get("create", 0)
        figures[f"{name}_stats"] = sum(of.get(each, 0) for each in ("getattr", "access", "readlink", "readdir"))
    return figures


def main() -> None:
    """Print one row a delay and way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay-ms", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--ways", nargs="+", default=["plain", "staged"])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found: dict[tuple[float, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory(prefix="staging-", dir="/var/tmp") as folder:
        place = Path(folder)
        for name in ("back/runs", "shared", "job", "local"):
            (place / name).mkdir(parents=True)
        (place / "job" / "first_step.py").write_text(SCRIPT)
        subprocess.run(["cp", "-a", sys.prefix, place / "back/env"], check=True)
        with cluster(place) as (env, enter):
            for delay in given.delay_ms:
                with mounted(place, enter, delay) as servers:
                    for turn in range(given.turns + 1):  # the first packs, and compiles
                        for way in given.ways:
                            one = one_start(place, env, servers, way)
                            print(delay, way, one, file=sys.stderr, flush=True)
                            for name, value in one.items() if turn else ():
                                found[delay, way][name].append(value)
    rows = [
        {"delay_ms": delay, "way": way, **{name: statistics.median(values) for name, values in figures.items()}}
        for (delay, way), figures in found.items()
    ]
    if given.json:
        print(json.dumps(rows))
        return
    print(
        f"{'delay':>8} {'way':<7} {'node: opens':>12} {'stats':>7} {'first node: opens':>18} {'stats':>7} {'first step':>11}"
    )
    for row in rows:
        counted = f"{row['other_opens']:>12.0f} {row['other_stats']:>7.0f} {row['first_opens']:>18.0f} {row['first_stats']:>7.0f}"
        print(f"{row['delay_ms']:>5} ms {row['way']:<7} {counted} {row['seconds']:>9.1f} s")


if __name__ == "__main__":
    main()
