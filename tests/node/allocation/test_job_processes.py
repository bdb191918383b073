"""The processes of this job on this host, found without psutil."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from launcher.node.allocation.job_processes import end_srun, life_s
from launcher.run.processes import age_s

JOB = {"SLURM_JOB_ID": "4000001", "SLURM_CONF": "/etc/slurm.conf"}


@pytest.fixture
def ended() -> Iterator[ExitStack]:
    """Ends what a test has started."""
    with ExitStack() as stack:
        yield stack


def start(stack: ExitStack, program: str, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process that waits for ever."""
    process = subprocess.Popen([program, "infinity"], env={"PATH": os.environ["PATH"], **environ})
    stack.callback(process.wait)
    stack.callback(process.kill)
    while not Path(f"/proc/{process.pid}/environ").read_bytes():  # what was just executed has none to read
        time.sleep(0.01)
    return process


def test_the_jobs_own_srun_alone_is_ended(tmp_path: Path, ended: ExitStack) -> None:
    """Another job's, another cluster's, one outside of jobs, and another program of this job go on."""
    srun = shutil.copy(shutil.which("sleep") or "", tmp_path / "srun")
    mine = start(ended, str(srun), JOB)
    others = [
        start(ended, str(srun), {**JOB, "SLURM_JOB_ID": "4000002"}),
        start(ended, str(srun), {**JOB, "SLURM_CONF": "/elsewhere"}),
        start(ended, str(srun), {}),
        start(ended, "sleep", JOB),
    ]

    assert end_srun({**JOB, "SLURM_RESTART_COUNT": "1"})

    assert mine.wait(timeout=60) == -9
    assert [process.poll() for process in others] == [None] * len(others)
    assert not end_srun({**JOB, "SLURM_JOB_ID": "4000003"})


def test_the_oldest_ancestor_of_this_life_tells_its_age() -> None:
    """The test's own process belongs to another life: its child is the oldest of this one. Of no process of the job there is none."""
    code = (
        "import os, sys\nfrom launcher.node.allocation.job_processes import life_s\nfrom launcher.run.processes import age_s\n"
        "print(age_s(os.getppid()), life_s(os.environ), age_s(os.getppid()), life_s({**os.environ, 'SLURM_JOB_ID': '1'}))"
    )
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}], check=True)"
    done = subprocess.run(
        [sys.executable, "-c", child], env={**os.environ, **JOB}, capture_output=True, text=True, check=True, timeout=60
    )

    before, age, after, none = map(float, done.stdout.split())
    assert before <= age <= after
    assert none == 0
    assert life_s({**os.environ, **JOB}) == 0 < age_s(os.getpid())
