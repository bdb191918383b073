"""An agent that is started again ends the one whose place it takes, and no other process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.node.agent.predecessor import end_predecessor
from launcher.run.paths import RunPaths
from launcher.run.processes import mark_of

OWN = {"SLURM_JOB_ID": "1", "SLURM_RESTART_COUNT": "0", "SLURMD_NODENAME": "node2", "SLURM_STEP_ID": "3"}
OLD = {**OWN, "SLURM_STEP_ID": "0"}
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A run's folder."""
    made = RunPaths(tmp_path / "run")
    made.lib.mkdir(parents=True)
    return made


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process that is called as an agent is, in an environment of SLURM's; none outlives the test."""
    made: list[subprocess.Popen[bytes]] = []

    def run(*words: object, **environ: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)", *map(str, words)]
        process = subprocess.Popen(command, env={**os.environ, **environ}, stdout=subprocess.PIPE)
        made.append(process)
        assert process.stdout is not None
        process.stdout.readline()  # it is what it will be
        return process

    yield run
    for process in made:
        process.kill()
        process.communicate()


def gone(*processes: subprocess.Popen[bytes]) -> bool:
    """Whether they have ended; whoever waited for them first has their exit codes."""
    return all(process.wait(10) is not None for process in processes)


def test_the_old_agent_is_ended(paths: RunPaths, start: Start) -> None:
    """The one that submitit started, and one that was started again before."""
    old = start("-m", "submitit.core._submit", paths.submitit, **OLD)
    older = start("-m", "launcher.node.agent", paths.root, **{**OLD, "SLURM_STEP_ID": "1"})

    end_predecessor(paths, OWN)

    assert gone(old, older)


def test_the_old_agent_of_a_point_of_a_sweep_is_ended(tmp_path: Path, start: Start) -> None:
    """Its lib is a link into the sweep's folder, where submitit's is; another point's job has another id."""
    sweep = tmp_path / "sweep"
    (sweep / "lib").mkdir(parents=True)
    paths = RunPaths(sweep / "point-1")
    paths.root.mkdir()
    paths.lib.symlink_to(sweep / "lib")
    own = start("-m", "submitit.core._submit", sweep / "submitit", **OLD)
    other = start("-m", "submitit.core._submit", sweep / "submitit", **{**OLD, "SLURM_JOB_ID": "2"})

    end_predecessor(paths, OWN)

    assert gone(own)
    assert other.poll() is None


OTHERS: dict[str, tuple[list[str], dict[str, str]]] = {
    "another cluster's job of the same id": (["-m", "submitit.core._submit", "{other}"], {}),
    "another node of this machine": (["-m", "submitit.core._submit", "{own}"], {"SLURMD_NODENAME": "node3"}),
    "another life": (["-m", "submitit.core._submit", "{own}"], {"SLURM_RESTART_COUNT": "1"}),
    "its own step": (["-m", "submitit.core._submit", "{own}"], {"SLURM_STEP_ID": "3"}),
    "the batch script's srun before 26.05": (["-m", "submitit.core._submit", "{own}"], {"SLURM_STEP_ID": ""}),
    "the batch script's srun since 26.05": (["-m", "submitit.core._submit", "{own}"], {"SLURM_STEP_ID": "-5"}),
    "the keeper": (["-m", "launcher.node.allocation.keeper", "{root}", "srun", "-m", "launcher.node.agent"], {}),
    "a command of launcher shell": (["launcher/node/agent/shell.py", "bash"], {}),
}


@pytest.mark.parametrize("who", OTHERS)
def test_nobody_else_is_ended(paths: RunPaths, start: Start, who: str) -> None:
    """Two clusters on one machine had runs end each other's agents."""
    words, changes = OTHERS[who]
    places = {"own": paths.submitit, "other": paths.root.parent / "other" / "submitit", "root": paths.root}
    other = start(*(word.format(**places) for word in words), **{**OLD, **changes})

    end_predecessor(paths, OWN)

    assert other.poll() is None


def test_one_that_is_named_is_ended_whatever_is_seen_of_it(paths: RunPaths, start: Start) -> None:
    """A container hides its environment; the mark tells it from a later process of that id."""
    named, later = start("agent"), start("agent")

    end_predecessor(paths, OWN, f"{named.pid},{mark_of(named.pid)}")
    end_predecessor(paths, OWN, f"{later.pid},boot/1")

    assert gone(named)
    assert later.poll() is None
