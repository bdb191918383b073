"""Record runs of one version of the launcher, for tests that later versions still read and resume them.

``python tests/older/record.py LAUNCHER OUT.tar.xz``, in a shell that `slurm/cluster env` points at a cluster. LAUNCHER is the
command of the version to be recorded. Two runs are taken while they are alive: one that runs and one that waits in the queue.

Paths become ``@HERE@`` (the folder with the job's code; runs are in its ``runs``) and ``@VENV@``. Of a run everything is kept
but ``lib`` (the launcher's own code, which every submission writes anew) and submitit's pickles (which name paths).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

TASK = """
import os, time
from pathlib import Path
import torch
import launcher

class Linear(launcher.Training):
    def __init__(self, epochs=2, step_s=0.02, fail_at=-1):
        self.epochs, self.step_s, self.fail_at, self.batch_size, self.steps = epochs, step_s, fail_at, 4, 0

    def model(self):
        return torch.nn.Linear(6, 1)

    def train_data(self):
        generator = torch.Generator().manual_seed(5)
        return torch.utils.data.TensorDataset(
            torch.randn(120, 6, generator=generator), torch.randn(120, 1, generator=generator))

    def optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    def loss(self, model, batch):
        time.sleep(self.step_s)
        self.steps += 1
        if self.steps == self.fail_at and os.environ["RANK"] == "1":
            raise ValueError("label 17 is out of range")
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])
"""
SCRIPT = """
import os
if os.environ["RANK"] == "1":
    raise KeyError("no such image")
"""
JOB = """
name: finished
task: linear:Linear
resources: {nodes: 2, tasks_per_node: 2, timeout_min: 10}
checkpoint: {interval_min: 0.02}
restart: {max_restarts: 0}
"""
SWEEP = """
name: sweep
task: linear:Linear
resources: {nodes: 1, tasks_per_node: 2, timeout_min: 10}
restart: {max_restarts: 0}
sweep:
  params.fail_at: [-1, 5]
"""
LIMIT_S = 300


class Recorder:
    """A folder with a job's code, in which one version of the launcher is called."""

    def __init__(self, launcher: str, here: Path) -> None:
        self.launcher = launcher
        self.here = here
        self.runs = here / "runs"
        for name, text in {"linear.py": TASK, "script.py": SCRIPT, "job.yaml": JOB, "sweep.yaml": SWEEP}.items():
            (here / name).write_text(text.lstrip())
        (here / "script.yaml").write_text(
            JOB.replace("task: linear:Linear", "script: script.py").replace("finished", "script")
        )

    def __call__(self, *words: str) -> None:
        """Call the launcher; how it ends does not matter, failed runs are wanted, too."""
        env = {**os.environ, "XDG_STATE_HOME": str(self.here.parent / "state"), "LAUNCHER_RUNS_DIR": str(self.runs)}
        env = {k: v for k, v in env.items() if k not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
        subprocess.run([self.launcher, *words], env=env, cwd=self.here, check=False, timeout=LIMIT_S)

    def run(self, name: str) -> Path:
        """The run of that name."""
        return next(self.runs.glob(f"{name}-*"))

    def job_id(self, name: str) -> str:
        """Its job's id."""
        return str(json.loads((self.run(name) / "submission.json").read_text())["job_id"])

    def wait_for(self, name: str, event: str) -> None:
        """Until the run has written that event."""
        until = time.monotonic() + LIMIT_S
        while f'"type": "{event}"' not in _text(self.run(name) / "events.jsonl").replace('":"', '": "'):
            if time.monotonic() > until:
                raise TimeoutError(f"{name}: no {event}")
            time.sleep(0.2)


def record(do: Recorder) -> None:
    """Make one run of each kind."""
    long = ("params.epochs=5000", "params.step_s=0.1")
    do("submit", "job.yaml", "--wait")
    do("submit", "script.yaml", "--wait")
    do("submit", "job.yaml", "name=failed", "params.fail_at=12", "--wait")
    do("submit", "sweep.yaml", "--wait")
    do("submit", "job.yaml", "name=requeued", "params.step_s=0.2")
    do.wait_for("requeued", "saved")
    subprocess.run(["scontrol", "requeue", do.job_id("requeued")], check=True)
    do.wait_for("requeued", "ended")
    do("submit", "job.yaml", "name=running", "resources.nodes=4", "slurm.exclusive=true", *long)
    do.wait_for("running", "saved")
    do("submit", "job.yaml", "name=queued")
    do("submit", "job.yaml", "name=cancelled")
    do("cancel", do.run("cancelled").name)
    kept = [do.run(name) for name in ("queued", "running")]
    for run in kept:  # as they are now, while they are alive
        shutil.copytree(run, do.here.parent / run.name, symlinks=True)
    for run in kept:
        do("cancel", run.name)
    do.wait_for("running", "ended")
    while subprocess.run(["squeue", "--noheader", "--states=PD,R,CG"], capture_output=True, check=True).stdout:
        time.sleep(0.2)  # the batch script's teardown writes how the run ended
    for run in kept:
        shutil.rmtree(run)
        (do.here.parent / run.name).rename(run)


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def neutral(folder: Path, here: str, venv: str) -> None:
    """Leave nothing in ``folder`` that belongs to the machine on which it was recorded."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_symlink():
            if path.name == "lib":
                path.unlink()
        elif path.name == "lib" and (path / "launcher").is_dir():
            shutil.rmtree(path)
        elif path.suffix == ".pkl":
            path.unlink()
        elif path.name == "secret":
            path.write_text("0" * 64 + "\\n")
        elif path.name == "environment.json":
            value = json.loads(path.read_text())
            value.update(packages={"torch": value["packages"].get("torch", "?")}, system="Linux", host="login")
            path.write_text(json.dumps(value, indent=1).replace(venv, "@VENV@").replace(here, "@HERE@"))
        elif path.is_file() and "checkpoints" not in path.parts:
            text = _text(path).replace(venv, "@VENV@").replace(here, "@HERE@")
            path.write_text(text.replace(os.uname().release, "6.1.0"))


def main(launcher: str, out: str) -> None:
    """Record and pack."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder).resolve() / "project"
        here.mkdir()
        do = Recorder(launcher, here)
        record(do)
        venv = str(Path(launcher).absolute().parents[1])
        neutral(do.runs, str(here), venv)
        with tarfile.open(out, "w:xz") as packed:
            packed.add(do.runs, "runs")
            packed.add(here / "linear.py", "linear.py")
            packed.add(here / "script.py", "script.py")


if __name__ == "__main__":
    main(*sys.argv[1:])
