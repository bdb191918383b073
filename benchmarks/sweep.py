"""How long submitting a sweep of 1,000 points takes: folders, specs, pickles, one ``sbatch``.

    python benchmarks/sweep.py

It goes through submitit to a pretended ``sbatch`` that answers at once: what is measured is the launcher's part and the file
system's. Prints wall time and, because other work on the machine does not count there, CPU time; the kernel's part of it is
making 16 entries a point, and says what the file system is like. ``TMPDIR`` chooses another one.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRIES = 5
POINTS = 1000


def once(words: list[str], folder: Path, env: dict[str, str]) -> tuple[float, float, float]:
    """Wall, CPU and of it the kernel's seconds of one call."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "launcher", *words], cwd=folder, env=env, capture_output=True, check=True)
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    user, kernel = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    return wall, user + kernel, kernel


def report(name: str, times: list[tuple[float, float, float]]) -> None:
    """One line: medians."""
    wall, cpu, kernel = (statistics.median(t[i] for t in times) * 1000 for i in range(3))
    print(f"{name:<28} {wall:8.0f} ms wall {cpu:8.0f} ms CPU, {kernel:.0f} of it the kernel's   ({len(times)} tries)")


def pretended_slurm(folder: Path) -> None:
    """``sbatch`` that takes everything, and what submitit and the launcher look for beside it."""
    for name, text in {"sbatch": "echo Submitted batch job 7", "srun": "true", "squeue": "true", "scancel": "true",
                       "scontrol": "exit 1"}.items():  # fmt: skip
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)


def main() -> None:
    """Measure and print."""
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bin").mkdir()
        (folder / "code").mkdir()
        (folder / "code" / "train.py").write_text("print(1)\n")
        pretended_slurm(folder / "bin")
        env = {**os.environ, "XDG_STATE_HOME": name, "LAUNCHER_RUNS_DIR": f"{name}/runs",
               "PYTHONPATH": str(Path(__file__).parents[1])}  # fmt: skip
        env["PATH"] = f"{name}/bin:{env['PATH']}"
        words = ["submit", "train.py", "--backend", "slurm", "--sweep", f"params.seed=range({POINTS})"]
        report(f"submit, {POINTS:,} points", [once(words, folder / "code", env) for _ in range(TRIES)])


if __name__ == "__main__":
    main()
