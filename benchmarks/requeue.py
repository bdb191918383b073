"""How soon a job that gives its allocation back runs again: N requeues of one job, from inside, on the test cluster.

    eval "$(slurm/cluster env)"; python benchmarks/requeue.py [--times 30] [--nodes 2]

Prints the seconds from the end of the job's last process to the start of the first one of its next life, beside the
scheduler's settings that they depend on. SLURM alone would wait 121 s (cred_expire + 1).
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIFE = """
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: None)
from launcher.slurm import handback
from launcher.slurm.environ import job_environ
began, here, last = time.time(), job_environ(), int(sys.argv[2])
if os.environ["SLURM_PROCID"] != "0":
    sys.exit()
time.sleep(1.0)
if here.restart_count < last:
    done = handback.requeue(here.own_id, restart_count=here.restart_count)
    forward = handback.pull_forward(here.own_id)
    assert done.ok and forward.ok, (done, forward)
with open(sys.argv[1], "a") as f:
    f.write(json.dumps({"life": here.restart_count, "began": began, "ended": time.time()}) + "\\n")
    f.flush()
"""


def run(times: int, nodes: int, limit_s: float) -> list[float]:
    """Gaps between lives, in seconds."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        lines, life = Path(folder) / "lives", Path(folder) / "life.py"
        life.write_text(LIFE)
        script = Path(folder) / "job.sh"
        script.write_text(
            f"#!/bin/sh\n#SBATCH --open-mode=append\n#SBATCH --output={folder}/out\nexport PYTHONPATH={ROOT}\n"
            f"srun --ntasks-per-node=1 {sys.executable} {life} {lines} {times}\n"
        )
        job = subprocess.run(
            ["sbatch", "--parsable", f"--nodes={nodes}", str(script)], check=True, capture_output=True, text=True
        ).stdout.strip()
        end = time.monotonic() + limit_s
        try:
            while not lines.exists() or lines.read_text().count("\n") <= times:
                if time.monotonic() > end:
                    print((Path(folder) / "out").read_text()[-2000:], file=sys.stderr)
                    raise SystemExit(f"only {lines.read_text().count(chr(10))} lives within {limit_s:g} s")
                time.sleep(0.2)
        finally:
            subprocess.run(["scancel", job], check=False)
        lives = sorted((json.loads(line) for line in lines.read_text().splitlines()), key=lambda v: v["life"])
    return [b["began"] - a["ended"] for a, b in itertools.pairwise(lives)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--limit", type=float, default=1800)
    args = parser.parse_args()
    config = subprocess.run(["scontrol", "show", "config"], check=True, capture_output=True, text=True).stdout
    gaps = sorted(run(args.times, args.nodes, args.limit))
    print(f"{len(gaps)} requeues over {args.nodes} nodes: median {statistics.median(gaps):.1f} s, max {gaps[-1]:.1f} s")
    for key in ("SLURM_VERSION", "SchedulerParameters", "SchedulerType", "KillWait", "CompleteWait", "AuthInfo"):
        if found := re.search(rf"^{key} +=.*", config, re.MULTILINE):
            print(f"  {found[0]}")


if __name__ == "__main__":
    main()
