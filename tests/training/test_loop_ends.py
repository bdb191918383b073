"""Facts about a loop's end: which state the last checkpoint holds, what `break` counts, which sizes and names are taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from crew import Crew, make_spec, run

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
