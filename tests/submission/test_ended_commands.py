"""A command that is ended while it fills a run's folder takes back what it has begun; what no command can, the next one does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.config.load.load import LoadedJob
from launcher.run import index
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome, write_outcome

pytestmark = pytest.mark.torch
ENDED = """
import os, signal, sys
from launcher.cli.main import main
from launcher.submission.folder import snapshot
real = getattr(snapshot, sys.argv[2])
setattr(snapshot, sys.argv[2], lambda *given: (sys.argv[2] == "_carry" and real(*given), os.kill(os.getpid(), int(sys.argv[1]))))
sys.exit(main(sys.argv[3:]))
"""


def _ended(home: Path, number: int, *words: str, at: str = "copy_launcher") -> subprocess.CompletedProcess[str]:
    """A command that gets a signal when it has copied the code, and before it copies the launcher; or when it has carried over a file."""
    line = [sys.executable, "-c", ENDED, str(int(number)), at, *words]
    return subprocess.run(line, cwd=home, capture_output=True, text=True, check=False)


def _submitted(home: Path) -> RunPaths:
    words = ["submit", "job.yaml", "--backend", "slurm"]
    subprocess.run([sys.executable, "-m", "launcher", *words], cwd=home, check=True, capture_output=True)
    paths = RunPaths(index.resolve("@last"))
    write_outcome(paths.outcome, {"state": "failed", "reason": "it broke"})
    return paths


@pytest.fixture
def code(job: Callable[..., LoadedJob], slurm: Path, home: Path) -> Path:
    """A job file and its code; returns the script."""
    job()
    (home / "job.yaml").write_text("script: train.py\n")
    return home / "train.py"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_submission_that_is_ended_leaves_nothing(code: Path, home: Path, number: int) -> None:
    """No run that would wait for ever; the command ends by the signal."""
    done = _ended(home, number, "submit", "job.yaml", "--backend", "slurm")

    assert done.returncode == -number, done.stderr
    assert list((home / "runs").iterdir()) == []


@pytest.mark.parametrize("at", ["copy_launcher", "_carry"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_resubmission_that_is_ended_leaves_the_old_code(
    code: Path, home: Path, slurm: Path, number: int, at: str
) -> None:
    """The next one runs it; after SIGKILL, which leaves a half of each, it puts the old code back first."""
    paths = _submitted(home)
    code.write_text("print('edited since')\n")
    (paths.code / "last.pt").write_text("the run's")
    done = _ended(home, number, "resubmit", paths.id, "--code", at=at)
    assert done.returncode == -number, done.stderr
    if number != signal.SIGKILL:
        assert (read_outcome(paths.outcome) or {})["reason"] == "it broke"
        assert (paths.code / "train.py").read_text() == "print(1)\n"
        assert list(paths.root.glob(".before.*")) == []
    again = [sys.executable, "-m", "launcher", "resubmit", paths.id]
    subprocess.run(again, cwd=home, check=True, capture_output=True)

    assert (paths.code / "train.py").read_text() == "print(1)\n"
    assert (paths.code / "last.pt").read_text() == "the run's"
    assert (paths.lib / "launcher" / "__init__.py").exists()
    assert list(paths.root.glob(".before.*")) == []


@pytest.mark.parametrize("verb", ["resubmit", "cancel"])
def test_no_job_is_left_of_a_resubmission_that_was_killed_once_slurm_had_it(
    code: Path, home: Path, slurm: Path, verb: str
) -> None:
    """Nobody knows that job's id: the next command cancels it by the run's name, as it would fail in the end, and the run with it."""
    paths = _submitted(home)
    sbatch = (slurm / "sbatch").read_text()
    (slurm / "sbatch").write_text(f"{sbatch}kill -KILL $PPID\n")
    words = [sys.executable, "-m", "launcher"]
    again = [*words, "resubmit", paths.id]
    assert subprocess.run(again, cwd=home, check=False, capture_output=True).returncode == -signal.SIGKILL
    assert not (slurm / "cancelled").exists()
    (slurm / "sbatch").write_text(sbatch)
    subprocess.run([*words, verb, paths.id], cwd=home, check=True, capture_output=True)

    assert (slurm / "cancelled").read_text() == f"--user={os.getuid()} --name={paths.id}\n"


def test_a_fork_of_a_run_whose_resubmission_was_killed_has_its_old_code(code: Path, home: Path) -> None:
    """It takes neither a half copy, nor another one than its checkpoint was made with."""
    paths = _submitted(home)
    paths.checkpoint(10).mkdir()
    (paths.checkpoint(10) / "manifest.json").write_text("{}")
    code.write_text("print('edited since')\n")
    _ended(home, signal.SIGKILL, "resubmit", paths.id, "--code")
    fork = [sys.executable, "-m", "launcher", "resubmit", paths.id, "--fork", "other"]
    subprocess.run(fork, cwd=home, check=True, capture_output=True)

    assert (index.resolve("other") / "code" / "train.py").read_text() == "print(1)\n"
