"""Facts about a loop's end: which state the last checkpoint holds, what `break` counts, which sizes and names are taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from crew import Crew, make_spec, run
from scripted import script, spec_of

import launcher
from launcher.run.spec import CheckpointSpec
from launcher.training.checkpoint.checkpoint_digest import digest_checkpoint

EVERY = CheckpointSpec(interval_steps=1, keep_last=1000)


def _run(folder: Path, target: str, ranks: int = 1, resume: Path | None = None, **values: Any) -> Crew:
    return run(make_spec(folder, f"ending_jobs:{target}", ranks, kind="function", **values), ranks, resume=resume)


@pytest.mark.parametrize("width", [4, 8192], ids=["small", "large"])
def test_the_last_checkpoint_is_of_the_last_step_whatever_comes_behind_the_loop(tmp_path: Path, width: int) -> None:
    """Weights that are overwritten behind the loop are in no checkpoint: undisturbed, saved at each step, or stopped there and resumed."""
    params = {"width": width}
    full = _run(tmp_path / "full", "changes_behind_its_loop", params=params)
    expected = digest_checkpoint(full.committed[-1])
    assert not bool((launcher.load_checkpoint(full.committed[-1])["model"]["weight"] == 7.0).any())

    each = _run(tmp_path / "each", "changes_behind_its_loop", params=params, checkpoint=EVERY)
    assert digest_checkpoint(each.committed[-1]) == expected

    go = tmp_path / "waits"
    spec = make_spec(
        tmp_path / "run", "ending_jobs:changes_behind_its_loop", 1, kind="function", params={**params, "wait": str(go)}
    )
    with Crew(spec, 1) as crew:
        crew.until(lambda *_: go.exists())
        assert crew.stop_now() == 4
        crew.finish()
    again = _run(tmp_path / "again", "changes_behind_its_loop", resume=crew.committed[-1], params=params)
    last = [*crew.committed, *again.committed][-1]
    assert digest_checkpoint(last) == expected


@pytest.mark.parametrize("behind", [False, True])
def test_break_counts_the_step_that_the_optimizer_has_made(tmp_path: Path, behind: bool) -> None:
    """Left behind the optimizer's step or before the next one, three steps are done: the checkpoint has them, and their number."""
    crew = _run(tmp_path / "run", "leaves_early", params={"after": 3, "behind": behind})

    assert crew.messages("finished", 0)[0]["step"] == 3
    assert crew.committed[-1].name == "step-00000003"
    saved = launcher.load_checkpoint(crew.committed[-1])["model"]
    held = torch.load(tmp_path / "run" / "weights.pt", weights_only=True)
    assert all(torch.equal(saved[name], held[name]) for name in held)


def test_a_loop_may_follow_epochs_that_were_left(tmp_path: Path) -> None:
    """Two of three epochs of two steps, then a loop of its own: six steps, no error."""
    assert _run(tmp_path / "run", "leaves_an_epoch").messages("finished", 0)[0]["step"] == 6


def test_the_end_of_an_epochs_loop_is_not_taken_for_the_runs(tmp_path: Path) -> None:
    """A loop over `steps` per epoch: only the first looks like the whole run; a resume, too, saves at the true end, and tells no number."""
    full = _run(tmp_path / "full", "loops_by_epochs")
    assert [path.name for path in full.committed] == ["step-00000003", "step-00000012"]
    assert full.messages("progress")[-1]["total_steps"] == 0

    again = _run(tmp_path / "again", "loops_by_epochs", resume=full.committed[0])
    assert [path.name for path in again.committed] == ["step-00000012"]


def test_loops_up_to_the_same_step_have_a_last_one(tmp_path: Path) -> None:
    """A loop per epoch, each up to the run's end: the last checkpoint is of that step, as it was before the lines behind it."""
    crew = _run(tmp_path / "run", "loops_by_epochs", params={"same": True})

    assert [path.name for path in crew.committed] == ["step-00000012"]
    assert not bool((launcher.load_checkpoint(crew.committed[0])["model"]["weight"] == 7.0).any())


def test_sizes_of_numpy_are_numbers(tmp_path: Path) -> None:
    """np.int64 as batch size, epochs and micro-batches: what was saved with them resumes."""
    full = _run(tmp_path / "full", "counts_in_numpy", checkpoint=EVERY)
    again = _run(tmp_path / "again", "counts_in_numpy", resume=full.paths.checkpoint(3))

    assert digest_checkpoint(again.committed[-1]) == digest_checkpoint(full.committed[-1])


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("twice", "worker.register(model=...): a Linear is registered by this name already"),
        ("late", "register(optimizer) came after the first step: a resume loads all state before it; call it earlier"),
    ],
)
def test_what_a_resume_could_not_load_is_refused_at_once(tmp_path: Path, how: str, said: str) -> None:
    """A second object of one name, and one that is registered in the loop, would start from scratch after a resume."""
    spec = make_spec(tmp_path / "run", "ending_jobs:registers", 1, kind="function", params={"how": how})
    with Crew(spec, 1) as crew:
        crew.until(lambda *_: crew.messages("failed"))
        assert crew.messages("failed")[0]["message"] == said


LEFT_BY_AN_EXCEPTION = """
import sys, time, torch, launcher
import torch.distributed as dist
DATA = torch.utils.data.TensorDataset(torch.arange(64.0 * 4).reshape(64, 4) / 256)
sys.excepthook = lambda *told: (sys.__excepthook__(*told), time.sleep(1))  # as a library that uploads what it was told
dist.init_process_group("gloo")
worker = launcher.attach()
torch.manual_seed(3)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
worker.register(model=model, optimizer=optimizer)
ddp = worker.wrap(model)
for epoch in worker.epochs(2):
    for batch in worker.batches(DATA, 8):
        optimizer.zero_grad()
        ddp(batch[0]).square().mean().backward()
        optimizer.step()
        if worker.steps_done + 1 == 4:
            raise ValueError("a wrong line of logging")
"""


def test_an_exception_behind_a_step_saves_no_end_of_its_epoch(tmp_path: Path) -> None:
    """Step 4 of 8 is one to save at: a checkpoint that calls the epoch over would have a resume leave out half of the data."""
    script(tmp_path, LEFT_BY_AN_EXCEPTION)
    every = CheckpointSpec(interval_steps=2, keep_last=100)
    code = str(tmp_path / "code")
    spec = make_spec(tmp_path / "run", "train.py", 1, kind="script", code_dir=code, checkpoint=every)
    with Crew(spec, 1) as crew:
        assert crew.finish()[0]["type"] == "failed"

        assert crew.exit_codes() == {0: 1}
    assert [path.name for path in crew.committed] == ["step-00000002"]


CATCHES_ALL = """
import time, traceback, torch
DATA = torch.utils.data.TensorDataset(torch.arange(64.0 * 400).reshape(6400, 4) / 256)


def main(worker):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker.register(model=model, optimizer=optimizer)
    try:
        for batch in worker.batches(DATA, 4, epochs=3):
            optimizer.zero_grad()
            model(batch[0]).square().mean().backward()
            optimizer.step()
            time.sleep(0.01)
    except:
        traceback.print_exc()
"""


def test_a_function_that_catches_everything_has_stopped_not_finished(tmp_path: Path) -> None:
    """Its ``except:`` takes the agreed stop: a preempted run would be told as complete."""
    script(tmp_path, CATCHES_ALL)
    with Crew(spec_of(tmp_path, "train:main", kind="function"), 1) as crew:
        crew.until(lambda _, m: m["type"] == "progress" and m["step"] > 3)
        step = crew.stop_now()
        crew.finish()

    assert [(w["step"], w["saved"]) for w in crew.messages("stopped")] == [(step, True)]
    assert not crew.messages("finished")


FORKS = """
import os, time, torch


def main(worker):
    torch.manual_seed(os.getpid())
    model = torch.nn.Linear(2000, 2500)
    worker.register(model=model)
    for step in range(2):
        worker.step()
    if os.fork() == 0:
        time.sleep(1)
        with torch.no_grad():
            model.weight.zero_()
"""


def test_a_child_that_a_function_forks_saves_nothing(tmp_path: Path) -> None:
    """It comes back from the function as well, when the rank has finished: nothing is left beside the rank's own checkpoint."""
    script(tmp_path, FORKS)
    with Crew(spec_of(tmp_path, "train:main", kind="function"), 1) as crew:
        crew.finish()

        assert crew.exit_codes() == {0: 0}
    (path,) = crew.committed
    assert bool(launcher.load_checkpoint(path)["model"]["weight"].any())
    assert [p.name for p in path.parent.iterdir()] == [path.name]
