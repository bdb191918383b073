"""The Trainer script: the same file under torchrun and by process spawning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "jobs" / "linear_trainer.py"
LIMIT_S = 240


def run(arguments: list[str], **variables: str) -> str:
    """What the command prints; it must end well, and print no warning."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Warning" not in done.stderr
    return done.stdout


@pytest.mark.parametrize(("ranks", "steps"), [(1, 64), (4, 16)])
def test_steps_per_epoch_under_torchrun(ranks: int, steps: int) -> None:
    """Real torchrun, two epochs: 64 steps an epoch on one rank, 16 on four, on every rank, and the loss falls."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]

    out = run([*torchrun, str(SCRIPT), "--epochs", "2"])

    losses = re.findall(rf"epoch \d: {steps} steps on {ranks} ranks, loss ([\d.]+)", out)
    assert len(losses) == 2
    assert 0 < float(losses[1]) < float(losses[0])
    assert sorted(re.findall(r"rank (\d): (\d+) steps", out)) == [(str(r), str(2 * steps)) for r in range(ranks)]


def test_processes_spawned_by_the_script_itself_train_alike() -> None:
    """Two spawned processes share an epoch's 64 batches, without a port named by anybody."""
    out = run([sys.executable, str(SCRIPT), "--spawn", "2", "--epochs", "1"])

    assert "epoch 0: 32 steps on 2 ranks" in out
    assert sorted(re.findall(r"rank (\d): (\d+) steps", out)) == [("0", "32"), ("1", "32")]


def test_the_same_file_under_the_launcher(tmp_path: Path) -> None:
    """`launcher run jobs/linear_trainer.yaml`: four ranks, 16 steps an epoch each, the run completed."""
    launcher = [sys.executable, "-m", "launcher", "run", str(SCRIPT.with_suffix(".yaml"))]

    run(
        [*launcher, f"runs_dir={tmp_path}/runs", "args=[--epochs, 2]", "preflight=false"],
        XDG_STATE_HOME=str(tmp_path / "state"),
    )

    said = "".join(p.read_text() for p in tmp_path.glob("runs/*/logs/attempt-0/round-0/rank-*.log"))
    assert "epoch 1: 16 steps on 4 ranks" in said
    assert "Warning" not in said
    assert sorted(re.findall(r"rank (\d): (\d+) steps", said)) == [(str(r), "32") for r in range(4)]
