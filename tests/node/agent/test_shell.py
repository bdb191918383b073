"""`launcher.node.agent.shell`: the command of `launcher shell` ends with its allocation, and its exit code is told."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("sleep 100", 129),
        ("trap 'exit 7' HUP; echo ready; while :; do sleep 0.05; done", 7),
        ("trap '' HUP; echo ready; while :; do sleep 0.05; done", 137),
    ],
)
def test_a_command_that_is_ended_has_its_own_exit_code(command: str, code: int) -> None:
    """128 and the signal, or what its own handler says: it was 0, as another call had waited for the process."""
    words = [sys.executable, "-m", "launcher.node.agent.shell", "bash", "-c", f"echo begun; exec 2>&1; {command}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "begun\n"
        if "ready" in command:
            assert shell.stdout.readline() == "ready\n"
        shell.send_signal(signal.SIGTERM)
        _, said = shell.communicate(timeout=60)

    assert shell.returncode == code
    assert "the allocation is ending (SIGTERM): the command is stopped" in said
