#!/usr/bin/env python3
"""How long a user waits for each verb: medians of fresh processes, beside what was promised.

.venv/bin/python benchmarks/verbs.py [--times 15] [--only ls] [--ranks 8]

Wall time to the first output and to the end, and processor time (user and system, children included), which other work on
the machine changes less. The limit is on wall time to the first output; over 10,000 runs and for plan on the whole command.
Ends with exit code 1 when a limit is passed.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from made_runs import make

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = Path(sys.executable).with_name("launcher")
JOB = str(ROOT / "jobs" / "fashion_mnist.yaml")
RUN = "run99-1121-0842-00063"


@dataclass(frozen=True)
class Case:
    """One command line, what it may take, and over how many runs."""

    words: str
    limit_s: float
    runs: int = 100
    whole: bool = False
    """The limit is on the whole command, not on its first output."""
    verdict: bool = False
    """The exit code says what the verb found here."""


CASES = (
    Case("--help", 0.100, whole=True),
    Case(f"plan {JOB}", 0.400, whole=True),
    *(Case(words, 0.300) for words in (
        "ls", "ls --json", "ls --sweep swp", "status", f"status {RUN}", f"why {RUN}", f"watch {RUN}", f"logs {RUN}",
        f"report {RUN} -o page.html", f"cancel {RUN}", "nodes", "clean", "schema", "completion bash",
    )),
    *(Case(words, 1.0, verdict=True) for words in ("doctor", "init -o -")),  # they ask SLURM several questions
    *(Case(words, 1.0, runs=10_000, whole=True) for words in ("ls", "ls --sweep swp", "ls --json", "status")),
)  # fmt: skip


@dataclass(frozen=True)
class Taken:
    """One run of a command, in seconds."""

    first: float
    whole: float
    cpu: float


def take(words: list[str], home: Path, verdict: bool = False) -> Taken:
    """Run the command as installed, in ``home``, where nobody else's runs are seen."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "LAUNCHER_"))}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed launcher is compiled
    environ |= {"LAUNCHER_RUNS_DIR": str(home / "runs"), "HOME": str(home), "XDG_STATE_HOME": str(home)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    with subprocess.Popen([str(SCRIPT), *words], cwd=home, env=environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        os.read(process.stdout.fileno(), 1)
        first = time.perf_counter() - begun
        process.stdout.read()
    whole = time.perf_counter() - begun
    if process.returncode and not verdict:
        sys.exit(f"launcher {' '.join(words)} ended with {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Taken(first, whole, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measure(case: Case, home: Path, times: int) -> bool:
    """Print one row of the table; whether the limit was kept."""
    words = case.words.split()
    take(words, home, case.verdict)  # warms the page cache, as a second use would find it
    taken = [take(words, home, case.verdict) for _ in range(times)]
    first, whole, cpu = (statistics.median(getattr(t, k) for t in taken) for k in ("first", "whole", "cpu"))
    kept = (whole if case.whole else first) <= case.limit_s
    name = case.words.replace(JOB, "job.yaml").replace(RUN, "RUN") + (
        f", {case.runs:,} runs" if case.runs > 100 else ""
    )
    figures = " | ".join(f"{1000 * v:.0f}" for v in (first, whole, cpu, case.limit_s))
    print(f"| {name} | {figures} | {'PASS' if kept else 'over'} |", flush=True)
    return kept


def main() -> None:
    """Make the runs, time the verbs, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--times", type=int, default=15)
    parser.add_argument("--only", default="", help="Only command lines that hold this text.")
    parser.add_argument("--ranks", type=int, default=8, help="Of the run whose samples are read.")
    options = parser.parse_args()
    cases = [case for case in CASES if options.only in case.words]
    print(f"medians of {options.times}, in ms; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores\n")
    print("| launcher … | first output | whole | processor | limit | |\n| --- | --- | --- | --- | --- | --- |")
    over = []
    with tempfile.TemporaryDirectory() as folder:
        for number in sorted({case.runs for case in cases}):
            home = Path(folder, str(number))
            make(home / "runs", number, time.time(), options.ranks)
            over += [c.words for c in cases if c.runs == number and not measure(c, home, options.times)]
    if over:
        sys.exit(f"slower than promised: {', '.join(over)}")


if __name__ == "__main__":
    main()
