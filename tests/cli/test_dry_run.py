"""The rehearsal and its drill, with real workers on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import harness
import psutil


def dry_run(tmp_path: Path, task: str, nodes: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Rehearse 12 steps on two ranks, which these nodes share."""
    job = tmp_path / "job.yaml"
    shape = {"nodes": nodes, "tasks_per_node": 2 // nodes}
    job.write_text(harness.job_text(2, task=task, params={"step_s": 0.0}, resources=shape))
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "LAUNCHER_RUNS_DIR": str(tmp_path / "runs")}
    return subprocess.run(
        [sys.executable, "-m", "launcher", "dry-run", str(job), "--steps", "12", "--seed", "3", *words],
        capture_output=True, text=True, env=env, timeout=600, check=False,
    )  # fmt: skip


def test_a_sound_job_passes(tmp_path: Path) -> None:
    """A job whose state is all saved ends the same after the drill: exit code 0, times and sizes told, nothing left."""
    done = dry_run(tmp_path, "steady:Steady", 2, "--json")

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["differs"], found["first"]["steps"], found["second"]["steps"]) == ([], 12, 12)
    assert found["resumed_from"] < found["killed"][1] < 12
    assert found["first"]["checkpoint_bytes"] > 0
    assert found["first"]["total_steps"] == 8 * 30
    assert not (tmp_path / "runs").exists()


def test_a_job_that_forgets_is_found_out(tmp_path: Path) -> None:
    """A job with state that nobody saves exits with 10, and the sentence names the parts that differ."""
    done = dry_run(tmp_path, "forgetful:Forgetful", 1)

    assert done.returncode == 10, done.stdout + done.stderr
    assert "does not resume exactly" in done.stderr
    assert "model" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_rehearsal_that_is_terminated_leaves_nothing(tmp_path: Path) -> None:
    """No process, no folder; and while it goes on, its runs have no name that a verb would take for the real run's."""
    (tmp_path / "job.yaml").write_text(harness.job_text(1, params={"step_s": 0.5}))
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    words = [sys.executable, "-m", "launcher", "dry-run", "job.yaml", "--steps", "100"]
    process = subprocess.Popen(words, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while not list(tmp_path.glob("tmp/launcher-dry-run-*/*/state.json")):
        assert time.monotonic() < end
        time.sleep(0.05)
    below = psutil.Process(process.pid).children(recursive=True)
    names = list((tmp_path / "state").rglob("runs/*"))
    process.send_signal(signal.SIGTERM)

    assert process.wait(60) == -signal.SIGTERM
    assert names == []
    assert list(tmp_path.glob("tmp/launcher-dry-run-*")) == []
    assert psutil.wait_procs(below, timeout=30)[1] == []
