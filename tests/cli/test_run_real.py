"""Facts about `launcher run` with real agents and workers: how it ends is its exit code, and nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from launcher.cli import main as main_module
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome

WAIT_S = 240.0
WORDS = [sys.executable, "-m", "launcher", "run"]


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment without runs, profiles or an outer job; the working directory is empty."""
    monkeypatch.chdir(tmp_path)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "VIRTUAL_ENV", "CONDA"))}
    here = {
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "LAUNCHER_RUNS_DIR": str(tmp_path / "runs"),
    }
    return {**kept, **here, "PYTHONPATH": str(Path(main_module.__file__).parents[2])}


def _the_run(folder: Path) -> RunPaths:
    (root,) = (folder / "runs").iterdir()
    return RunPaths(root)


def _processes(root: Path) -> list[str]:
    """Processes that belong to the run: each carries LAUNCHER_RUN_DIR."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("LAUNCHER_RUN_DIR") == str(root):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


def _until(true: object, what: str) -> None:
    assert callable(true)
    end = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < end, f"waited {WAIT_S} s for {what}"
        time.sleep(0.05)


def test_a_failing_script_is_exit_code_8(tmp_path: Path, env: dict[str, str]) -> None:
    """The sentence names the rank and its code; no traceback of ours; nothing runs afterwards."""
    (tmp_path / "fail.py").write_text("raise SystemExit(3)\n")
    words = [*WORDS, "fail.py", "resources.nodes=2", "restart.max_restarts=0", "preflight=false"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=WAIT_S, check=False)

    assert done.returncode == 8, done.stdout + done.stderr
    assert "exit code 3" in done.stdout + done.stderr or "exited with code 3" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    _until(lambda: not _processes(_the_run(tmp_path).root), "the run's processes to end")


def test_ctrl_c_stops_the_run_and_is_exit_code_9(tmp_path: Path, env: dict[str, str]) -> None:
    """The first Ctrl-C asks for an agreed stop; a script is sent TERM; the run ends cancelled and leaves no process."""
    (tmp_path / "slow.py").write_text(
        "import pathlib, sys, time\npathlib.Path(sys.argv[1]).touch()\ntime.sleep(3600)\n"
    )
    up = tmp_path / "up"
    words = [*WORDS, "slow.py", "preflight=false", "--", str(up)]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            _until(lambda: up.exists() or process.poll() is not None, "the script to begin")
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()

    assert process.returncode == 9, said
    assert "saving and stopping" in said
    assert (read_outcome(_the_run(tmp_path).outcome) or {})["state"] == "cancelled"
    _until(lambda: not _processes(_the_run(tmp_path).root), "the run's processes to end")


def test_a_killed_command_takes_the_run_along(tmp_path: Path, env: dict[str, str]) -> None:
    """kill -9 of `launcher run`: agents, fork servers and workers end."""
    (tmp_path / "slow.py").write_text(
        "import pathlib, sys, time\npathlib.Path(sys.argv[1]).touch()\ntime.sleep(3600)\n"
    )
    up = tmp_path / "up"
    words = [*WORDS, "slow.py", "preflight=false", "--", str(up)]
    with subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _until(lambda: up.exists() or process.poll() is not None, "the script to begin")
            assert _processes(_the_run(tmp_path).root)
        finally:
            process.kill()
    _until(lambda: not _processes(_the_run(tmp_path).root), "the run's processes to end")

    assert up.exists()
