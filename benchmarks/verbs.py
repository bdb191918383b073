#!/usr/bin/env python3
"""How long a user waits for a verb: medians of fresh processes, and whether any of them imported torch.

.venv/bin/python benchmarks/verbs.py
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = Path(sys.executable).with_name("launcher")
VERBS = {"--help": 0.100, "plan jobs/fashion_mnist.yaml": 0.400, "ls": 0.300, "schema": None}
"""Each command line and the seconds it may take (None: only told)."""


def seconds(arguments: list[str], folder: str) -> float:
    """One run of the command, as installed."""
    begun = time.perf_counter()
    subprocess.run([str(SCRIPT), *arguments, *runs(arguments, folder)], cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - begun


def runs(arguments: list[str], folder: str) -> list[str]:
    """An override that keeps a plan's look at free space inside ``folder``."""
    return [f"runs_dir={folder}"] if arguments[0] == "plan" else []


def main() -> None:
    """Measure each verb and print the table; fail when one is over its limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--times", type=int, default=15)
    args = parser.parse_args()
    slow = []
    print(f"| launcher … | median of {args.times} (ms) | limit (ms) |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for verb, limit in VERBS.items():
            seconds(verb.split(), folder)  # warms the page cache, as a second use would find it
            median = statistics.median(seconds(verb.split(), folder) for _ in range(args.times))
            print(f"| {verb} | {median * 1000:.0f} | {limit * 1000 if limit else 0:.0f} |", flush=True)
            if limit and median > limit:
                slow.append(verb)
    if slow:
        sys.exit(f"slower than promised: {', '.join(slow)}")


if __name__ == "__main__":
    main()
