"""`launcher resubmit` with real runs on this machine: other sizes within an epoch, more epochs, other checkpoints, forks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import harness
import pytest
import torch

from launcher.run.paths import RunPaths
from launcher.training.checkpoint.read import load_shared

STEPS = 100
"""Of an epoch of the first test: at 0.3 s each, three commands come in time on a machine ten times slower than usual."""
ROWS = STEPS * 4 * 3


def verb(tmp_path: Path, *words: str, fails: int = 0) -> str:
    """Run one verb as a user would; returns what it said."""
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "LAUNCHER_RUNS_DIR": str(tmp_path / "runs")}
    command = [sys.executable, "-m", "launcher", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=600, check=False)
    assert done.returncode == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def submit(tmp_path: Path, world: int, **params: object) -> harness.Run:
    """A ledger job here, on so many ranks of one node."""
    return harness.submit(
        tmp_path, {}, 1, backend="local", task="ledger:Ledger", params=params, resources={"tasks_per_node": world}
    )


def stop_at(tmp_path: Path, run: harness.Run, step: int) -> int:
    """Stop at a step agreed beyond ``step``, saved; returns the step."""
    run.wait_step(step)
    verb(tmp_path, "cancel", run.paths.id, "--save")
    outcome = run.wait_end()
    stopped = int(outcome["step"])
    assert outcome["state"] == "cancelled"
    assert run.paths.checkpoint(stopped).exists()
    run.wait_no_process()
    return stopped


@pytest.mark.long
def test_four_three_two_six_ranks_by_resubmit(tmp_path: Path) -> None:
    """4, 3, 2, then 6 ranks in one epoch: every sample once, the undisturbed loss and weights within rounding; then more epochs."""
    seen = tmp_path / "seen"
    plain = submit(tmp_path / "plain", 4, step_s=0.0, rows=ROWS)
    run = submit(tmp_path / "run", 4, step_s=0.3, rows=ROWS, seen=str(seen))
    where = tmp_path / "run"
    stops = [stop_at(where, run, 3)]
    for world in (3, 2):
        verb(where, "resubmit", run.paths.id, f"resources.tasks_per_node={world}")
        stops.append(stop_at(where, run, stops[-1] + 2))
    assert stops[-1] < STEPS, f"the epoch was over before the last change: {stops}"
    verb(where, "resubmit", run.paths.id, "resources.tasks_per_node=6", "params.step_s=0")
    assert run.wait_end()["state"] == plain.wait_end()["state"] == "completed"

    met = Counter(int(line.split()[1]) for file in tmp_path.glob("seen.*") for line in file.read_text().splitlines())
    assert met == Counter(range(ROWS))
    assert run.outcome()["step"] == STEPS
    losses = [[e["loss"] for e in r.told("epoch")] for r in (plain, run)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    one, two = (load_shared(RunPaths(r.paths.root).checkpoint(STEPS))["objects"]["model"] for r in (plain, run))
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-5, atol=1e-6)

    said = verb(where, "resubmit", run.paths.id, fails=16)
    assert f"completed at step {STEPS}: nothing is left to do" in said
    verb(where, "resubmit", run.paths.id, "params.epochs=2", "resources.timeout_min=20", "--wait")
    assert (run.outcome()["state"], run.outcome()["step"]) == ("completed", 2 * STEPS)
    assert [e["resume_step"] for e in run.told("round_started")] == [None, *stops, STEPS]


def test_from_an_earlier_step_and_as_another_run(tmp_path: Path) -> None:
    """--from goes back and sets later checkpoints aside; --fork leaves the run alone and begins a new one from it."""
    run = submit(tmp_path, 1, step_s=0.0)  # 80 steps, a checkpoint every 10
    assert run.wait_end()["step"] == 80
    steps = sorted(int(p.name[5:]) for p in run.paths.checkpoints.glob("step-*"))
    verb(tmp_path, "resubmit", run.paths.id, "--from", str(steps[0]), "--wait")

    assert [e["resume_step"] for e in run.told("round_started")] == [None, steps[0]]
    assert len(list(run.paths.checkpoints.glob("aside.*"))) == len(steps) - 1
    before = run.paths.outcome.read_text()
    verb(tmp_path, "resubmit", run.paths.id, "--fork", "other", "params.epochs=2", "--wait")
    (other,) = (harness.Run(p) for p in (tmp_path / "runs").iterdir() if p.name.startswith("other-"))
    assert [e["resume_step"] for e in other.told("round_started")] == [80]
    assert other.outcome()["step"] == 160
    assert run.paths.outcome.read_text() == before
