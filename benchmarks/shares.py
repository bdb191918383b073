"""How long a large state takes to be saved where several ranks write it, beside rank 0 alone.

``python benchmarks/shares.py [--mb 2048] [--ranks 2] [--saves 4] [--dir .]``: runs on this machine, one with shares and one without, one
after the other; prints medians of the seconds until the last rank had written, and of how long training was blocked. The first save
of each is left out: it makes its buffers.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from launcher.run.files import read_lines
from launcher.run.paths import RunPaths

JOB = Path(__file__).parent / "shares_job"
ALONE_MB = 2**20
"""No state is so large."""


def saves(folder: Path, ranks: int, share_mb: int, megabytes: int, count: int) -> list[dict[str, Any]]:
    """Train a run to its end; return its saves but the first."""
    job = {
        "name": "shares",
        "function": "large:main",
        "params": {"megabytes": megabytes, "share_mb": share_mb, "steps": count + 1},
        "code": {"dir": str(JOB)},
        "resources": {"nodes": 1, "tasks_per_node": ranks, "cpus_per_task": 1},
        "checkpoint": {"interval_steps": 1, "keep_last": 2},
        "runs_dir": str(folder),
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    words = [sys.executable, "-m", "launcher", "submit", str(folder / "job.yaml"), "--backend", "local", "--wait"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    (root,) = (path for path in folder.iterdir() if (path / "spec.json").exists())
    return [event for event in read_lines(RunPaths(root).events) if event["type"] == "saved"][1:]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=2048)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--saves", type=int, default=4)
    parser.add_argument("--dir", default=".")
    given = parser.parse_args()
    middle: dict[str, list[float]] = {}
    for name, share_mb in (("rank 0 alone", ALONE_MB), ("in shares", given.mb // given.ranks // 2)):
        with tempfile.TemporaryDirectory(dir=given.dir) as folder:
            found = saves(Path(folder).resolve(), given.ranks, share_mb, given.mb, given.saves)
        middle[name] = [statistics.median(event[key] for event in found) for key in ("write_s", "blocked_s")]
        print(
            f"{name}: written after {middle[name][0]:.2f} s, training blocked for {middle[name][1]:.3f} s (medians of {len(found)} saves)"
        )
    print(f"ratio of written: {middle['in shares'][0] / middle['rank 0 alone'][0]:.2f}")


if __name__ == "__main__":
    main()
