"""`launcher shell` beside a run on a real cluster: it sees what the run sees, takes nothing, and holds nothing up."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import harness
import pytest
from cluster import Cluster
from harness import Run

pytestmark = pytest.mark.slurm


KILL_WAIT_S = 120
"""A process that does not heed TERM holds its job for so long."""


@pytest.fixture
def run(cluster: Cluster, tmp_path: Path) -> Iterator[Run]:
    """A run of two ranks on two hosts, in the middle of its training."""
    cluster.cancel_all()
    cluster.set(KillWait=KILL_WAIT_S)
    run = harness.submit(
        tmp_path, cluster.env, 2, params={"step_s": 0.05, "epochs": 400},
        environment={"variables": {"COLOUR": "teal"}, "setup": ["export SET_UP=$((6*7))"]},
    )  # fmt: skip
    run.wait_saved(1)
    yield run
    cluster.cancel_all()


def environ(cluster: Cluster, run: Run) -> dict[str, str]:
    """As the user has it who submitted the run."""
    return {**os.environ, **cluster.env, "LAUNCHER_RUNS_DIR": str(run.paths.root.parent), "SHELL": "/bin/bash"}


def shell(cluster: Cluster, run: Run, options: list[str], *command: str) -> subprocess.CompletedProcess[str]:
    """`launcher shell OPTIONS RUN COMMAND`."""
    line = [sys.executable, "-m", "launcher", "shell", *options, run.paths.id, *command]
    return subprocess.run(
        line,
        env=environ(cluster, run),
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def test_a_command_runs_where_a_rank_runs(cluster: Cluster, run: Run) -> None:
    """On the rank's host, in the code directory, with the job's variables and setup lines; its exit code is the verb's."""
    look = "import os, socket; print(socket.gethostname(), os.getcwd(), os.environ['COLOUR'], os.environ['SET_UP'])"
    done = shell(cluster, run, ["--rank", "1"], "python", "-c", look)

    assert done.stdout.split() == ["node2", str(run.paths.code), "teal", "42"], done.stderr
    assert shell(cluster, run, [], "bash", "-c", "exit 7").returncode == 7
    assert shell(cluster, run, [], "bash", "-c", "kill -SEGV $$").returncode == 128 + 11
    assert shell(cluster, run, [], "no-such-command").returncode == 127
    refused = shell(cluster, run, ["--rank", "9"], "true")
    assert (refused.returncode, "has no rank 9 now" in refused.stderr) == (16, True)
    step = run.state()["step"]
    run.wait_step(step + 5)
    assert [e["type"] for e in run.history() if e["type"] in ("node_lost", "worker_failed", "hang")] == []


def test_an_open_shell_does_not_hold_up_a_requeue(cluster: Cluster, run: Run) -> None:
    """A terminal's shell ends when the run is preempted; the run is back before SLURM would have killed a shell that stays."""
    line = [sys.executable, "-m", "launcher", "shell", run.paths.id]
    pid, fd = pty.fork()
    if pid == 0:
        os.execvpe(line[0], line, environ(cluster, run))
    text = ""
    os.write(fd, b"tty && echo in-$SLURM_JOB_ID-$COLOUR\n")
    deadline = time.monotonic() + 60
    while f"in-{run.job_id}-teal" not in text and time.monotonic() < deadline:
        text += os.read(fd, 4096).decode(errors="replace")
    assert "/dev/pts/" in text
    assert f"in-{run.job_id}-teal" in text, text

    cluster.sbatch("-p", "high", "-N4", "--exclusive", wrap="srun sleep 1")
    run.wait("a second attempt", lambda: len(run.told("attempt_started")) == 2)

    # Where the last process ends a moment after StartTime, SLURM waits for 121 s, and for 121 s more behind a shell that was killed.
    away_s = run.told("attempt_started")[1]["t"] - run.told("requeued")[0]["t"]
    assert away_s < KILL_WAIT_S + 90, json.dumps(run.history()[-20:])
    while True:
        try:
            data = os.read(fd, 4096)
        except OSError:
            break
        if not data:
            break
        text += data.decode(errors="replace")
    os.waitpid(pid, 0)
    assert "the allocation is ending (SIGTERM)" in text
