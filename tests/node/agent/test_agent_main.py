"""An agent's last act: its node's copy of the environment goes, unless another agent lives in it (`environment.stage`)."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

AGENT = """
import os
from launcher.node.agent import entry
from launcher.node.agent.main import AgentMain
def run_agent(run_dir, **how):
    print("LAUNCHER_STAGED" in os.environ, flush=True)
    return 5
entry.run_agent = run_agent
AgentMain("run")()
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """What stage.sh has unpacked."""
    (tmp_path / "copy" / "0").mkdir(parents=True)
    (tmp_path / "copy" / "ready").touch()
    return tmp_path / "copy"


def agent(copy: Path, locks: Path) -> tuple[int, str]:
    """The agent's exit code and whether what it starts would see LAUNCHER_STAGED."""
    line = f'exec 9<"{locks}" && flock --shared 9 && LAUNCHER_STAGED="{copy}" exec "$@"'
    done = subprocess.run(
        ["sh", "-c", line, "sh", sys.executable, "-c", AGENT], capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout.strip()


def test_the_copy_goes_with_its_agent(copy: Path) -> None:
    """The exit code stays the agent's; whatever the agent starts (another job, say) does not know of the copy."""
    assert agent(copy, copy) == (5, "False")
    assert not copy.exists()


def test_a_copy_that_another_agent_has_locked_stays(copy: Path) -> None:
    """An agent that was started again lives in the same copy: it would lose every module that it has not imported yet."""
    held = os.open(copy, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)

    assert agent(copy, copy)[0] == 5

    os.close(held)
    assert (copy / "ready").exists()


def test_a_folder_that_is_not_the_one_that_was_opened_stays(copy: Path, tmp_path: Path) -> None:
    """A variable that came from elsewhere removes nothing."""
    assert agent(copy, tmp_path) == (5, "False")
    assert (copy / "ready").exists()
