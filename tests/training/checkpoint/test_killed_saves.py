"""Writers killed at their n-th system call: what a resume finds is whole, and at most one interval old."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from killing import CALLS

needs_ptrace = pytest.mark.skipif(not CALLS, reason="system calls are known for x86-64 and aarch64 alone")


def campaign(tmp_path: Path, trials: int, *words: str) -> dict[str, Any]:
    """Killed saves in a process of their own, which has no thread when it forks. It asserts after every trial."""
    program = Path(__file__).parents[1] / "killed_saves.py"
    command = [sys.executable, str(program), "--dir", str(tmp_path / "run"), "--trials", str(trials), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3000)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@needs_ptrace
def test_a_save_killed_at_some_of_its_calls_costs_one_interval(tmp_path: Path) -> None:
    """Workers and leader, each killed at points spread over all of a save: no damaged checkpoint, none lost."""
    found = campaign(tmp_path, 30)

    assert found["killed"] >= 27  # threads race: a process may make a call less than it did undisturbed
    assert found["kept"] == 2


@needs_ptrace
def test_a_process_of_an_older_attempt_can_neither_commit_nor_delete(tmp_path: Path) -> None:
    """A worker or the leader stands still at points spread over all of a save, while a newer attempt does all its work.

    Going on afterwards, it changes nothing of what is committed.
    """
    found = campaign(tmp_path, 15, "--stale")

    assert all(found["stood_still"][name] >= 4 for name in ("rank 0", "rank 1", "leader"))  # of 5: threads race
    assert found["kept"] == 2


@needs_ptrace
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_save_killed_at_each_of_its_calls_costs_one_interval(tmp_path: Path) -> None:
    """Every write, fsync, rename, mkdir and unlink of three processes, alone and together: more than 300 kills."""
    found = campaign(tmp_path, 620)

    assert found["killed"] > 590
    assert {"write", "fsync", "rename", "mkdir", "unlinkat", "rmdir"} <= set(found["killed_at"])
    assert found["kept"] == 2
