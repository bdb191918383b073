"""`launcher.node.agent.shell`: the command of `launcher shell` ends with its allocation, and its exit code is told.

It gets what is passed by name from the run's folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import launcher

_PATIENT = """
import sys
from launcher.node.agent import shell

shell._PATIENCE_S = float(sys.argv[1])
sys.exit(shell.main(sys.argv[2:]))
"""
"""A command that handles HUP may be slow to run."""


@pytest.mark.parametrize(
    ("command", "patience_s", "code"),
    [
        ("sleep 100", 600.0, 129),
        ("trap 'exit 7' HUP; echo ready; while :; do sleep 0.05; done", 600.0, 7),
        ("trap '' HUP; echo ready; while :; do sleep 0.05; done", 0.1, 137),
    ],
)
def test_a_command_that_is_ended_has_its_own_exit_code(
    tmp_path: Path, command: str, patience_s: float, code: int
) -> None:
    """128 and the signal, or what its own handler says: it was 0, as another call had waited for the process."""
    words = [sys.executable, "-c", _PATIENT, str(patience_s), "bash", "-c", f"echo begun; exec 2>&1; {command}"]
    env = {**os.environ, "LAUNCHER_RUN_DIR": str(tmp_path)}
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "begun\n"
        if "ready" in command:
            assert shell.stdout.readline() == "ready\n"
        shell.send_signal(signal.SIGTERM)
        _, said = shell.communicate(timeout=60)

    assert shell.returncode == code
    assert "the allocation is ending (SIGTERM): the command is stopped" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_to_this_process_alone_leaves_no_command(tmp_path: Path, number: signal.Signals) -> None:
    """HUP and USR1 ended it and left the command; HUP comes of a terminal that closes, to which nothing can be written."""
    ours, theirs = os.openpty()
    words = [sys.executable, "-m", "launcher.node.agent.shell", "bash", "-c", "echo $$; exec sleep 600"]
    env = {**os.environ, "LAUNCHER_RUN_DIR": str(tmp_path)}
    with subprocess.Popen(
        words, env=env, stdout=subprocess.PIPE, stderr=theirs, text=True, start_new_session=True
    ) as shell:
        assert shell.stdout is not None
        command = psutil.Process(int(shell.stdout.readline()))
        os.close(theirs)
        if number == signal.SIGHUP:
            os.close(ours)
        shell.send_signal(number)
        try:
            assert shell.wait(60) == 129
            assert not command.is_running()
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                command.kill()
    if number != signal.SIGHUP:
        with os.fdopen(ours, encoding="utf-8") as terminal:
            assert terminal.readline() == "\n"
            of_slurm = number in (signal.SIGTERM, signal.SIGUSR2)
            why = f"the allocation is ending ({number.name})" if of_slurm else f"{number.name} came"
            assert terminal.readline() == f"launcher shell: {why}: the command is stopped\n"


def test_under_nohup_a_command_outlives_its_terminal(tmp_path: Path) -> None:
    """HUP is ignored there."""
    words = [
        "nohup",
        sys.executable,
        "-m",
        "launcher.node.agent.shell",
        "bash",
        "-c",
        "echo begun; read -r line; exit $line",
    ]
    env = {**os.environ, "LAUNCHER_RUN_DIR": str(tmp_path)}
    with subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "begun\n"
        shell.send_signal(signal.SIGHUP)
        shell.communicate("7\n", timeout=60)

    assert shell.returncode == 7


_SIGNALLED_WHILE_IT_STARTS = """
import os, signal, subprocess, sys
from launcher.node.agent import shell

def start(*given, real=subprocess.Popen, **options):
    child = real(*given, **options)
    os.kill(os.getpid(), signal.SIGTERM)
    return child

subprocess.Popen = start
sys.exit(shell.main(["sleep", "100"]))
"""


def test_a_command_is_ended_by_a_signal_that_comes_while_it_starts(tmp_path: Path) -> None:
    """It was left to itself, as the signal ended only the process that had just started it."""
    words = [sys.executable, "-c", _SIGNALLED_WHILE_IT_STARTS]
    env = {**os.environ, "LAUNCHER_RUN_DIR": str(tmp_path)}
    ended = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=60)

    assert ended.returncode == 129
    assert "the allocation is ending (SIGTERM): the command is stopped" in ended.stderr


def _shell(run: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in ``run``, by the program's path and with a PYTHONPATH that a setup line has set."""
    words = [
        sys.executable,
        str(Path(launcher.__file__).parent / "node" / "agent" / "shell.py"),
        "sh",
        "-c",
        "echo $TOKEN",
    ]
    env = {**os.environ, "LAUNCHER_RUN_DIR": str(run), "PYTHONPATH": "/nowhere", "TOKEN": "before"}
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False, cwd=run, timeout=60)


def test_a_command_gets_the_variables_that_are_passed_by_name(tmp_path: Path) -> None:
    """They are read on the node, as agents do; of what cannot be read there is one sentence, and no command without them."""
    (tmp_path / "passed.json").write_text(json.dumps({"TOKEN": "hunter22"}))
    given = _shell(tmp_path)
    (tmp_path / "passed.json").rename(tmp_path / "elsewhere")
    (tmp_path / "passed.json").symlink_to(tmp_path / "elsewhere")
    refused = _shell(tmp_path)

    assert (given.stdout, given.stderr) == ("hunter22\n", "")
    said = f"launcher shell: {tmp_path}/passed.json cannot be read: it is a link\n"
    assert (refused.returncode, refused.stdout, refused.stderr) == (126, "", said)
