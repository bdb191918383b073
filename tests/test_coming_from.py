"""The pages for those who come from other tools: their job files load, `init` makes them, their recipes work."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from harness import Run

DOCS = Path(__file__).parents[1] / "docs"
NAMES = ("torchrun", "submitit", "lightning")
PROGRAM = """
import os
import time

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

RECIPE
HERE = os.path.join(os.environ["LAUNCHER_RUN_DIR"], "results")


class Line(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def training_step(self, batch, _):
        if os.environ["LAUNCHER_ATTEMPT"] == "0":
            time.sleep(0.1)
        print("does step", self.trainer.global_step + 1, flush=True)
        x, y = batch
        return nn.functional.mse_loss(self.layer(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


saves = Launcher()
print("process", os.getpid(), flush=True)
x = torch.ones(2400, 4)
data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
trainer = pl.Trainer(
    accelerator="cpu", num_nodes=1, devices=2, strategy="ddp", max_epochs=2, logger=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[ModelCheckpoint(dirpath=HERE, save_last=True), saves],
)
trainer.fit(Line(), data, ckpt_path=saves.ckpt_path)
"""


DIES = """
        dies_at, saved = {"0": (160, 150), "1": (210, 200)}.get(os.environ["LAUNCHER_ROUND"], (0, 0))
        if self.trainer.global_step + 1 == dies_at:
            while not os.path.exists(f"{os.environ['LAUNCHER_RUN_DIR']}/checkpoints/step-{saved:08d}"):
                time.sleep(0.01)
            os.kill(os.getpid(), 9)
"""


def block(name: str, language: str) -> str:
    """The page's first code block of a language."""
    found = re.search(rf"^```{language}\n(.*?)^```", page(name), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def page(name: str) -> str:
    """One page."""
    return (DOCS / f"coming-from-{name}.md").read_text()


def launcher(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a verb there; no SLURM is to be found."""
    env = {
        **os.environ,
        "PATH": str(place / "bin"),
        "XDG_STATE_HOME": str(place / "state"),
        "LAUNCHER_RUNS_DIR": str(place / "runs"),
    }
    return subprocess.run(
        [sys.executable, "-m", "launcher", *words], cwd=place, env=env, capture_output=True, text=True, timeout=240
    )


FUNCTION = re.findall(r"^```python\n(.*?)^```", page("submitit"), re.MULTILINE | re.DOTALL)[1]
"""The function of the page's second block."""


@pytest.mark.parametrize("name", NAMES)
def test_the_job_file_of_the_page_can_be_planned(tmp_path: Path, name: str) -> None:
    """It loads, and its plan has the ranks that the other tool would start."""
    (tmp_path / "job.yaml").write_text(block(name, "yaml"))
    (tmp_path / "train.py").write_text("import torch\n" + (FUNCTION if name == "submitit" else ""))

    done = launcher(tmp_path, "plan", "job.yaml")

    assert done.returncode == 0, done.stderr
    assert "2 nodes x 4 GPUs = 8 ranks" in done.stdout


@pytest.mark.parametrize("name", ["torchrun", "lightning"])
def test_init_makes_the_job_file_of_the_page(tmp_path: Path, name: str) -> None:
    """`launcher init` converts the page's sbatch script to the page's job file."""
    (tmp_path / "train.sbatch").write_text(block(name, "bash"))
    (tmp_path / "train.py").write_text("import torch\n")

    done = launcher(tmp_path, "init", "train.sbatch", "-o", "-")

    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout) == yaml.safe_load(block(name, "yaml"))


def test_a_lightning_script_saves_when_it_is_told_to_stop_and_goes_on_from_there(tmp_path: Path) -> None:
    """With the page's callback: stopped in the middle of an epoch, resumed at the very next step, and no step is done twice.

    SLURM's TERM, which reaches every rank before that, ends none. An epoch is 150 steps long, which take 15 s.
    """
    pytest.importorskip("pytorch_lightning")
    (tmp_path / "train.py").write_text(PROGRAM.replace("RECIPE", block("lightning", "python")))
    (tmp_path / "job.yaml").write_text("name: lit\nscript: train.py\nresources: {tasks_per_node: 2}\n")
    assert launcher(tmp_path, "submit", "job.yaml", "--backend", "local").returncode == 0
    (root,) = (p for p in (tmp_path / "runs").iterdir() if (p / "events.jsonl").exists())
    run = Run(root)
    try:
        run.wait("ten steps", lambda: len(steps(run, 0)) > 10)
        for rank in (0, 1):
            (pid,) = numbers(run, "process", 0, rank)
            os.kill(pid, signal.SIGTERM)
        before = len(steps(run, 0))
        run.wait("ten more", lambda: len(steps(run, 0)) > before + 10)
        assert launcher(tmp_path, "cancel", root.name, "--save").returncode == 0
        assert run.wait_end()["state"] == "cancelled"

        assert launcher(tmp_path, "resubmit", root.name, "--wait").returncode == 0
    finally:
        launcher(tmp_path, "cancel", root.name)

    first, second = steps(run, 0), steps(run, 1)
    assert 20 < len(first) < 150
    assert first + second == list(range(1, 301))


def test_a_lightning_script_counts_each_step_once_however_it_is_interrupted(tmp_path: Path) -> None:
    """Killed behind an epoch's last step and in the next epoch: Lightning, which would repeat an epoch there, does each step once.

    An epoch is 150 steps long, as above. The last step is saved: more epochs go on from it.
    """
    pytest.importorskip("pytorch_lightning")
    text = PROGRAM.replace("RECIPE", block("lightning", "python")).replace("time.sleep(0.1)", "pass")
    text = text.replace("        x, y = batch\n", f"{DIES}        x, y = batch\n")
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "job.yaml").write_text(
        "name: lit\nscript: train.py\nresources: {tasks_per_node: 2}\ncheckpoint: {interval_steps: 50}\n"
    )

    done = launcher(tmp_path, "submit", "job.yaml", "--backend", "local", "--wait")

    assert done.returncode == 0, done.stdout + done.stderr
    (root,) = (p for p in (tmp_path / "runs").iterdir() if (p / "events.jsonl").exists())
    run = Run(root)
    assert [e["resume_step"] for e in run.told("round_started")] == [None, 150, 200]
    assert [steps(run, 0, round_)[:: len(steps(run, 0, round_)) - 1] for round_ in range(3)] == [
        [1, 160],
        [151, 210],
        [201, 300],
    ]
    assert run.told("saved")[-1]["step"] == 300


def steps(run: Run, attempt: int, round_: int = 0) -> list[int]:
    """The steps that rank 0 began in a round."""
    return numbers(run, "does step", attempt, 0, round_)


def numbers(run: Run, words: str, attempt: int, rank: int, round_: int = 0) -> list[int]:
    """The numbers that a rank printed behind these words in a round."""
    log = run.paths.rank_log(attempt, round_, rank)
    return [int(n) for n in re.findall(rf"{words} (\d+)", log.read_text())] if log.exists() else []
