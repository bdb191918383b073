"""Checkpoints that a script writes itself, in real runs on this machine: FSDP through DCP, and files that are watched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import harness
from fsdp2 import needs_fsdp2


def verb(tmp_path: Path, *words: str) -> str:
    """Run one verb as a user would; returns what it said."""
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "LAUNCHER_RUNS_DIR": str(tmp_path / "runs")}
    command = [sys.executable, "-m", "launcher", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def submit(tmp_path: Path, name: str, script: str, args: list[str], ranks: int, **checkpoint: object) -> harness.Run:
    """Submit a script of tests/faults/job here."""
    job = {
        "name": name,
        "script": script,
        "args": args,
        "code": {"dir": str(harness.JOB)},
        "resources": {"tasks_per_node": ranks},
        "checkpoint": checkpoint,
        "preflight": False,
        "restart": {"max_restarts": 1},
    }
    (tmp_path / f"{name}.yaml").write_text(json.dumps(job))
    verb(tmp_path, "submit", str(tmp_path / f"{name}.yaml"), "--backend", "local")
    (root,) = (path for path in (tmp_path / "runs").iterdir() if path.name.startswith(f"{name}-"))
    return harness.Run(root)


@needs_fsdp2
def test_a_sharded_model_resumes_from_what_the_leader_committed(tmp_path: Path) -> None:
    """fully_shard on two ranks, DCP into save_dir: a rank killed, resumed from resume_path, the undisturbed weights."""
    plain = submit(
        tmp_path, "plain", "sharded.py", ["24", "0", str(tmp_path / "one")], 2, interval_steps=5, keep_last=100
    )
    killed = submit(
        tmp_path, "killed", "sharded.py", ["24", "0.6", str(tmp_path / "two")], 2, interval_steps=5, keep_last=100
    )
    killed.wait_saved(1)
    killed.wait_step(7)
    os.kill(killed.rank(1)["pid"], signal.SIGKILL)

    assert killed.wait_end()["state"] == plain.wait_end()["state"] == "completed"
    starts = killed.told("round_started")
    assert len(starts) == 2
    assert starts[1]["resume_step"] >= 5
    names = {path.name for path in killed.paths.checkpoint(starts[1]["resume_step"]).iterdir()}
    assert {"manifest.json", ".metadata", "__0_0.distcp", "__1_0.distcp"} <= names
    assert (tmp_path / "one").read_text() == (tmp_path / "two").read_text()


def test_a_plain_scripts_files_are_its_progress(tmp_path: Path) -> None:
    """checkpoint.watch: new files refill the budget of restarts and are shown as saved; resuming is the script's own."""
    run = submit(tmp_path, "plain", "plain.py", ["200000", "0.1"], 1, watch="out/*.pt")
    for round_ in range(3):  # one more than restart.max_restarts allows without progress
        run.wait(f"round {round_}", lambda n=round_: len(run.told("round_started")) == n + 1)
        saved = len(run.told("saved"))
        run.wait("a newer file", lambda n=saved: len(run.told("saved")) > n)
        if round_ < 2:
            os.kill(run.rank(0)["pid"], signal.SIGKILL)
    said = verb(tmp_path, "status", run.paths.id)
    log = run.paths.rank_log(0, 2, 0).read_text()
    verb(tmp_path, "cancel", run.paths.id)
    run.wait_end()
    run.wait_no_process()

    assert "out/" in said
    assert "(the script's own)" in said
    assert int(log.split()[1]) > 0
