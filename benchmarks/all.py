#!/usr/bin/env python3
"""The main benchmarks, short, and the table of their figures in docs/benchmarks.md (`make bench`; 10 to 15 minutes).

    python benchmarks/all.py [--only TEXT] [--dry]

Each figure stands beside its goal and, where another tool does the same, beside that one's. Those of the cluster need root on Debian or
Ubuntu. ``--only``: benchmarks whose command holds this text; the others keep their lines, each of which says when it was measured.
``--dry`` changes no file. Ends with 1 where a goal is missed or a figure could not be had.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- make bench writes from here -->", "<!-- to here -->"
LIMIT_S = 400
DOWN_S = 150
"""One that took too long gets so long to take its cluster down."""
HEAD = "| what | figure | goal | others | command | when |\n| --- | --- | --- | --- | --- | --- |"
NEED_ROOT = ("startup", "reruns", "revivals", "requeue", "resume_read")
"""The first four make a real cluster, the last has the kernel drop what it keeps of files."""
NUMBER = r"\s*([\d.]+)"


@dataclass(frozen=True)
class Figure:
    """One line of the table: what it says and where the number stands in what the benchmark prints."""

    what: str
    pattern: str
    unit: str
    goal: float | None = None
    factor: float = 1.0
    """What is printed times this is the figure."""
    interval: str = ""
    """The pattern of its 95 % interval."""
    peers: tuple[tuple[str, str], ...] = ()
    """Name and pattern of what other tools need."""
    share: float | None = None
    """The goal is this share of what the best of the first ``rivals`` peers needs."""
    rivals: int | None = None

    def line(self, output: str, command: str, when: str) -> str:
        """Return the line; a figure beyond its goal is bold."""
        value = number(self.pattern, output, self.factor)
        shown = "not found" if value is None else f"{value:.3g} {self.unit}"
        if self.interval and (ends := re.search(self.interval, output)):
            shown += f" (95 %: {ends[1]} to {ends[2]})"
        found = [(name, number(pattern, output, self.factor)) for name, pattern in self.peers]
        others = ", ".join(f"{name} {needs:.3g} {self.unit}" for name, needs in found if needs is not None)
        goal, rivals = self.goal, [needs for _, needs in found[: self.rivals] if needs is not None]
        if self.share is not None and rivals:
            goal = self.share * min(rivals)
        if value is not None and goal is not None and value > goal:
            shown = f"**{shown}**"
        wanted = "" if goal is None else f"{goal:.3g} {self.unit}" if self.share else f"{goal:g} {self.unit}"
        return f"| {self.what} | {shown} | {wanted} | {others} | `{command}` | {when} |"


def median_of(name: str) -> str:
    """The pattern of a line `NAME … median N s`."""
    return rf"^{re.escape(name)}\s+median{NUMBER} s"


def verb(words: str) -> str:
    """The pattern of a verb's line: its first output, in ms."""
    return rf"^\| {re.escape(words)} \|{NUMBER} \|"


def overhead(what: str) -> Figure:
    """What a step of the shared loop costs beyond that of a plain DDP loop."""
    return Figure(
        what, r"more a step: *(-?[\d.]+) µs", "µs", 30, interval=r"more a step:.*95 %: (-?[\d.]+) to (-?[\d.]+)"
    )


SCALE: dict[str, tuple[str, str, float]] = {
    "ordered_s": ("from nothing to the round ordered", "s", 5),
    "leader_cpu": ("the leader in steady state", "cores", 0.30),
    "lag_max_s": ("its event loop late, at most", "s", 0.2),
    "restart_s": ("a killed rank to the next round ordered", "s", 3),
    "agreed_s": ("TERM to the agreed step", "s", 2),
    "saved_s": ("from there to a save of a file a rank", "s", 5),
    "rss_mb": ("memory of the leader", "MB", 500),
}
"""Keys of scale.py: words, unit, and the goal for 2,000 nodes."""
BENCHMARKS: dict[str, list[Figure]] = {
    "verbs.py --times 5": [
        Figure("`launcher --help`", verb("--help"), "ms", 100),
        Figure("`launcher plan job.yaml`", verb("plan job.yaml"), "ms", 400),
        Figure("`launcher status RUN`", verb("status RUN"), "ms", 300),
        Figure("`launcher why RUN`", verb("why RUN"), "ms", 300),
        Figure("`launcher ls`, 10,000 runs", verb("ls, 10,000 runs"), "ms", 1000),
    ],
    "sweep.py": [Figure("submitting a sweep of 1,000 points, but for sbatch", r"([\d.]+) ms wall", "s", 3, 0.001)],
    "rounds.py --times 10": [
        Figure("a killed rank to the next new step, 8 workers", rf"^without the steps done again: +median{NUMBER}", "s", 1),
    ],
    "step_overhead.py --ranks 1 --hidden 128 --layers 1 --pairs 400 --cpu": [overhead("a step more than plain DDP's, steps of 1 ms")],
    "step_overhead.py --ranks 1 --hidden 512 --layers 2 --pairs 400 --block 10 --cpu": [overhead("the same, steps of 5 ms")],
    "step_overhead.py --ranks 1 --hidden 2048 --layers 1 --pairs 200 --block 5 --cpu": [overhead("the same, steps of 40 ms")],
    "step_overhead.py --loop batches --ranks 1 --hidden 128 --pairs 400 --cpu": [overhead("a function's loop over `batches`, steps of 1 ms")],
    "step_overhead.py --loop steps --ranks 1 --hidden 128 --pairs 400 --cpu": [overhead("a script's loop over `steps`, steps of 1 ms")],
    "checkpoint.py --mb 512 --pairs 3": [
        Figure("a save blocks training for (goal: 1 % of torch.save)", rf"^median.*ours blocked{NUMBER}", "s", share=0.01, rivals=1,
               peers=(("torch.save and fsync", rf"^median.*fsync{NUMBER}"), ("DCP async_save", rf"^DCP async_save: blocked{NUMBER}"))),
    ],
    "resume_read.py --mb 512 --turns 3": [
        Figure("a resume reads its checkpoint in so many times a plain read of the file", rf"^a resume takes{NUMBER}", "times"),
    ],
    "shares.py --mb 512 --saves 3 --dir .": [
        Figure("a state of 512 MB written by two ranks in shares, beside rank 0 alone", rf"^ratio of written:{NUMBER}", "times"),
    ],
    **{
        f"scale.py --nodes {nodes} --seconds 10 --json": [
            Figure(f"{nodes:,} nodes of 8 ranks, simulated: {words}", rf'"{name}": ([\d.]+)', unit, goal if nodes == 2000 else None)
            for name, (words, unit, goal) in SCALE.items()
        ]
        for nodes in (500, 2000)
    },
    "startup.py --turns 2": [
        Figure("submission to the first step, 16 workers on 4 hosts (goal: a 6th of the best)", rf"^\| launcher \|{NUMBER}", "s", share=1 / 6,
               peers=(("srun per rank", rf"^\| srun \|{NUMBER}"), ("torchrun", rf"^\| torchrun \|{NUMBER}"))),
    ],
    "reruns.py --times 4": [
        Figure("`rerun` to the first step, 8 workers on 4 hosts", median_of("step"), "s", 2),
        Figure("the same by `submit` in an idle queue", median_of("queue"), "s"),
    ],
    "revivals.py --times 1": [
        Figure("an agent killed, to the next new step", median_of("agent killed"), "s", 5),
        Figure("the leader killed, to the next new step", median_of("leader killed"), "s", 5),
    ],
    "requeue.py --run --times 3": [
        Figure("a preempted run: the old workers' end to the new ones' first step", r"^old workers' end.*median ([\d.]+)", "s", 15),
    ],
}  # fmt: skip


def number(pattern: str, output: str, factor: float) -> float | None:
    """Return the number that a pattern finds, times ``factor``."""
    found = re.search(pattern, output, re.MULTILINE)
    return None if found is None else float(found[1]) * factor


def measure(command: str, figures: list[Figure]) -> list[str]:
    """Run a benchmark; return its lines of the table."""
    when = f"{time.strftime('%Y-%m-%d')}, {commit()}, load {os.getloadavg()[0]:.1f}"
    name, *words = command.split()
    run = [sys.executable, str(ROOT / "benchmarks" / name), *words]
    if name.removesuffix(".py") in NEED_ROOT and os.geteuid() != 0:
        return [f"| {f.what} | not run: needs root | | | `{command}` | {when} |" for f in figures]
    if name == "startup.py":  # the others bring up clusters of their own
        run = [
            "sh",
            "-ec",
            'trap "slurm/cluster down >&2" EXIT; trap "exit 130" INT; slurm/cluster up >&2; eval "$(slurm/cluster env)"; "$@"',
            "sh",
            *run,
        ]
    process = subprocess.Popen(
        run, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return [f"| {f.what} | **not over after {LIMIT_S} s** | | | `{command}` | {when} |" for f in figures]
    finally:
        end(process)
    if process.returncode:
        print(err[-2000:], file=sys.stderr)
    return [figure.line(out, command, when) for figure in figures]


def end(process: subprocess.Popen[str]) -> None:
    """End what still runs as Ctrl-C does, so that it takes its cluster down; then by force."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired), process:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.communicate(timeout=DOWN_S)
            finally:
                os.killpg(process.pid, signal.SIGKILL)


def commit() -> str:
    """What is measured."""
    words = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def machine() -> str:
    """The sentence above the table: where all of it was measured."""
    slurm = (
        subprocess.run(["sh", "-c", "slurmctld -V 2>/dev/null || true"], capture_output=True, text=True).stdout.strip()
        or "no SLURM"
    )
    return (
        f"{os.cpu_count()} cores, Python {platform.python_version()}, torch {version('torch').partition('+')[0]}, {slurm}. "
        "Bold: beyond its goal."
    )


def main() -> int:
    """Measure, print, write; 1 where a goal is missed or a figure could not be had."""
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # also in the background of a shell: `end` needs it in what is started
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--dry", action="store_true")
    args = parser.parse_args()
    before, _, rest = PAGE.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    head, lines, missed = machine(), [], False
    if args.only and not args.dry and head not in old:
        parser.error(f"the other lines were not measured with this: {head} Measure all of them, or use --dry.")
    print(f"{head}\n\n{HEAD}", flush=True)
    for command, figures in BENCHMARKS.items():
        kept = [line for line in old.splitlines() if f"`{command}`" in line]
        found = measure(command, figures) if args.only in command else kept
        if args.only in command:
            missed |= any("| **" in line or "| not found" in line for line in found)
        print("\n".join(found), flush=True)
        lines += found
    if not args.dry:
        PAGE.write_text(f"{before}{BEGIN}\n{head}\n\n{HEAD}\n" + "\n".join(lines) + f"\n{END}{after}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
