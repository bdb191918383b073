"""The drill names what a job forgot: one forgetful job a part of the state, with real workers on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import harness
import psutil
import pytest
from fsdp2 import needs_fsdp2
from harness import seldom

from launcher.cli.dry_run import command
from launcher.run.worker_texts import UNSAVED
from launcher.submission.rehearsal import rehearse

LOOP = """
import torch
import launcher

class Counter:
    n = 0
    def state_dict(self):
        return {{"n": self.n}}
    def load_state_dict(self, state):
        self.n = state["n"]

def train(worker):
    torch.manual_seed(1)
    model = worker.wrap(torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.9**n)
    counter = Counter()
    worker.register({registered})
    for step in {steps}:
        counter.n += 1
        loss = model(torch.randn(4, 6)).square().mean() * counter.n
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if {counts}:
            worker.step(loss=loss)
"""
ALL = "model=model, optimizer=optimizer, scheduler=scheduler, counter=counter"


def dry_run(tmp_path: Path, code: str, job: dict[str, object], *words: str) -> subprocess.CompletedProcess[str]:
    """Rehearse 8 steps of ``code``; one rank, as quick as may be."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(code)
    (tmp_path / "job.yaml").write_text(
        json.dumps({"name": "t", "code": {"dir": str(tmp_path / "code")}, "preflight": False, **job})
    )
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    return subprocess.run(
        [sys.executable, "-m", "launcher", "dry-run", str(tmp_path / "job.yaml"), "--steps", "8", "--seed", "1", *words],
        capture_output=True, text=True, env=env, timeout=600, check=False,
    )  # fmt: skip


def loop(registered: str = ALL, steps: str = "worker.steps(200)", counts: bool = False) -> str:
    """A function's code."""
    return LOOP.format(registered=registered, steps=steps, counts=counts)


FORGOTTEN = {
    "model": (loop("optimizer=optimizer, scheduler=scheduler, counter=counter"), "weights that SGD trains"),
    "optimizer": (loop("model=model, scheduler=scheduler, counter=counter"), "optimizer SGD"),
    "scheduler": (loop("model=model, optimizer=optimizer, counter=counter"), "scheduler LambdaLR"),
    "rng": (loop(steps="range(worker.steps_done, 200)", counts=True), "run.restore_rng()"),
    "own state": (loop("model=model, optimizer=optimizer, scheduler=scheduler"), "an attribute, a counter, a sampler"),
}


@pytest.mark.parametrize("part", seldom(FORGOTTEN, "scheduler", "own state", "model", "rng"))
def test_what_a_function_forgets_is_named(tmp_path: Path, part: str) -> None:
    """Exit code 10, and one sentence that names the forgotten part, or, where nothing can see it, where to look."""
    code, words = FORGOTTEN[part]
    done = dry_run(tmp_path, code, {"function": "train:train"})

    assert done.returncode == 10, done.stdout + done.stderr
    assert "does not resume exactly" in done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_loop_of_ones_own_that_saves_everything_passes(tmp_path: Path) -> None:
    """`worker.steps` ends a rehearsal by itself; the drill passes, and the whole job's length is known.

    The job restarts nothing: the drill's own kill is restarted all the same.
    """
    done = dry_run(tmp_path, loop(), {"function": "train:train", "restart": {"max_restarts": 0}}, "--json")

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["differs"], found["first"]["steps"], found["second"]["steps"]) == ([], 8, 8)
    assert found["first"]["total_steps"] == 200
    assert found["first"]["warnings"] == []


SCRIPT = """
import torch
import launcher

torch.distributed.init_process_group("gloo")
run = launcher.attach()
torch.manual_seed(3)
model = torch.nn.Linear(4, 1)
run.register(model=model)
run.restore_rng()
while run.steps_done < 100000:  # never asks whether to stop
    model.weight.data += 0.01 * run.steps_done
    run.step()
"""


@pytest.mark.parametrize("attach", ["launcher.attach", "getattr(launcher, 'attach')"])
def test_an_attached_script_is_rehearsed_too(tmp_path: Path, attach: str) -> None:
    """A script that would go on for ever ends after the rehearsal's steps, and is drilled: also where its text does not show attach."""
    done = dry_run(tmp_path, SCRIPT.replace("launcher.attach", attach), {"script": "train.py"}, "--json")

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["differs"], found["first"]["steps"], found["second"]["steps"]) == ([], 8, 8)
    assert found["resumed_from"] < found["killed"][1] < 8


@pytest.mark.parametrize(
    ("code", "job", "why"),
    [
        (
            loop(),
            {"checkpoint": {"enabled": False}},
            "the job saves nothing and cannot resume (checkpoint.enabled: false)",
        ),
        (loop(steps="worker.steps(2)"), {}, "a drill needs three steps"),
    ],
)
def test_a_job_that_cannot_be_drilled_does_not_pass(
    tmp_path: Path, code: str, job: dict[str, object], why: str
) -> None:
    """Exit code 10 and the reason: 0 would say that it resumes exactly. What was measured is told all the same."""
    done = dry_run(tmp_path, code, {"function": "train:train", **job})

    assert done.returncode == 10, done.stdout + done.stderr
    assert f"the resume was not tested: {why}" in " ".join(done.stderr.split())
    assert "  step     " in done.stdout  # of two steps, memory may not have been looked at
    assert "drill" not in done.stdout


def test_a_script_that_saves_nothing_is_told_at_once(tmp_path: Path) -> None:
    """Exit code 10 after the first run: no rank is killed behind a checkpoint that never comes."""
    done = dry_run(tmp_path, SCRIPT.replace("run.register(model=model)\n", ""), {"script": "train.py"})

    assert done.returncode == 10, done.stdout + done.stderr
    assert f"the resume was not tested: {UNSAVED}" in " ".join(done.stderr.split())
    assert "is killed at step" not in done.stdout


SHARDED = (harness.JOB / "sharded.py").read_text()
FORGETS = "for step in run.steps("
FULL = {
    "nothing": SHARDED,
    "optimizer": SHARDED.replace(FORGETS, f"if run.resume_path:\n    optimizer.state.clear()\n{FORGETS}"),
}


@needs_fsdp2
@pytest.mark.parametrize("forgotten", seldom(FULL, "optimizer"))
def test_a_script_that_saves_through_dcp_is_drilled(tmp_path: Path, forgotten: str) -> None:
    """FSDP saved by DCP into `save_dir`: what is new in every save does not count, what is forgotten is named."""
    job = {"script": "train.py", "args": ["200", "0", "unused"], "resources": {"tasks_per_node": 2}}
    done = dry_run(tmp_path, FULL[forgotten], job, "--json")

    assert done.returncode == (0 if forgotten == "nothing" else 10), done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert set(found["first"]["digests"]) == {"model", "optimizer", "rng", "all"}
    assert set(found["differs"]) == (set() if forgotten == "nothing" else {"model", "optimizer", "all"})
    assert 0 < found["resumed_from"] < found["killed"][1] < found["second"]["steps"] == 8


def test_a_script_that_reports_no_steps_is_watched_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may run for days: it is ended once it has run for a while, and the rehearsal says so; nothing is left running."""
    pid, rounds = tmp_path / "pid", rehearse._rounds
    monkeypatch.setattr(rehearse, "PLAIN_S", 1.0)
    # A second of the script, not of its start.
    monkeypatch.setattr(rehearse, "_rounds", lambda paths: rounds(paths) if pid.exists() else [])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "train.py").write_text(
        "import os, pathlib, time\n"
        f"new = pathlib.Path({str(tmp_path / 'new')!r})\nnew.write_text(str(os.getpid()))\nnew.rename({str(pid)!r})\n"
        "time.sleep(100000)\n"
    )
    command.main([str(tmp_path / "train.py"), "preflight=false"], standalone_mode=False)

    assert "it was ended after 1 s, still running" in capsys.readouterr().out
    assert not psutil.pid_exists(int(pid.read_text()))


def test_a_rehearsal_that_fails_leaves_its_logs(tmp_path: Path) -> None:
    """The sentence names the reason and a folder that is still there."""
    done = dry_run(tmp_path, "raise RuntimeError('planted')\n", {"script": "train.py", "restart": {"max_restarts": 0}})

    assert done.returncode == 8, done.stdout + done.stderr
    assert "planted" in done.stderr
    logs = Path(done.stderr.split("(logs: ")[1].split(")")[0])
    assert any("planted" in log.read_text() for log in logs.rglob("rank-*.log"))
