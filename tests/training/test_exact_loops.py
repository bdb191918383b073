"""Loops over data as users write them: what a resume repeats leaves no trace, what cannot be resumed is refused or told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from crew import Crew, make_spec, run
from looping_jobs import numbers

import launcher
from launcher.run.spec import CheckpointSpec
from launcher.run.worker_texts import ORDER_KEPT
from launcher.training.checkpoint.checkpoint_digest import digest_checkpoint
from launcher.training.ddp.data import to_device

EVERY = CheckpointSpec(interval_steps=1, keep_last=1000)


def _run(folder: Path, target: str, ranks: int = 1, resume: Path | None = None, **values: Any) -> Crew:
    values = {"kind": "function", "checkpoint": EVERY, **values}
    return run(make_spec(folder, f"looping_jobs:{target}", ranks, **values), ranks, resume=resume)


def _refusal(folder: Path, target: str, **values: Any) -> str:
    """The message with which rank 0 fails."""
    with Crew(make_spec(folder, f"looping_jobs:{target}", 1, **values), 1) as crew:
        return str(crew.finish()[0].get("message"))


def _order(folder: Path) -> list[str]:
    """What rank 0 trained on, with its learning rate."""
    return (folder / "order-0.txt").read_text().splitlines()


@pytest.mark.parametrize(
    ("target", "at"),
    [("range_of_epochs", 4), ("scheduled_first", 8), ("short_epochs", 1), ("short_epochs", 3), ("growing", 3)],
)
def test_what_a_resume_repeats_leaves_no_trace(tmp_path: Path, target: str, at: int) -> None:
    """A scheduler's step between loops or before an epoch's first batch runs again; an epoch that was left is over: the same to the bit."""
    full = _run(tmp_path / "full", target)
    again = _run(tmp_path / "again", target, resume=full.paths.checkpoint(at))

    assert _order(tmp_path / "again") == _order(tmp_path / "full")[at:]
    assert digest_checkpoint(again.committed[-1]) == digest_checkpoint(full.committed[-1])


@pytest.mark.parametrize(("inside", "steps"), [(True, 9), (False, 3)])
def test_a_loop_that_is_left_and_held_is_over(tmp_path: Path, inside: bool, steps: int) -> None:
    """By ``bar = tqdm(worker.batches(...))``, say: the next epoch was left out, and the last step was in no checkpoint."""
    full = _run(tmp_path / "full", "held_loops", params={"inside": inside})
    assert (len(_order(tmp_path / "full")), full.committed[-1].name) == (steps, f"step-{steps:08}")

    for at in (2, 3, 4) if inside else ():
        again = _run(tmp_path / f"again-{at}", "held_loops", resume=full.paths.checkpoint(at))
        assert _order(tmp_path / f"again-{at}") == _order(tmp_path / "full")[at:]
        assert digest_checkpoint(again.committed[-1]) == digest_checkpoint(full.committed[-1])


def test_a_scheduler_may_be_made_after_its_optimizer_is_registered(tmp_path: Path) -> None:
    """Its constructor sets the learning rate of step 0 in the optimizer that was loaded: the checkpoint's is set again."""
    full = _run(tmp_path / "full", "scheduled_late")
    again = _run(tmp_path / "again", "scheduled_late", resume=full.paths.checkpoint(5))

    assert _order(tmp_path / "again") == _order(tmp_path / "full")[5:]
    assert digest_checkpoint(again.committed[-1]) == digest_checkpoint(full.committed[-1])


@pytest.mark.parametrize("inside", [True, False], ids=["epochs", "one loop"])
@pytest.mark.parametrize(("changed", "params"), [({"seed": 1}, {}), ({}, {"shuffle": False})], ids=["seed", "shuffle"])
def test_an_order_that_has_begun_is_kept(tmp_path: Path, inside: bool, changed: Any, params: Any) -> None:
    """A changed seed, or shuffle, would use some samples twice: it is told, and orders the next epoch. A second resume keeps that, too."""
    params = {"inside": inside, **params}
    first = _run(tmp_path / "first", "in_epochs", params={"inside": inside})
    old = [line.split("]")[0] for line in _order(tmp_path / "first")]
    second = _run(tmp_path / "second", "in_epochs", resume=first.paths.checkpoint(2), params=params, **changed)
    new = [line.split("]")[0] for line in _order(tmp_path / "second")]

    assert new[:4] == old[2:6]
    assert (new[4:] == old[6:]) is not inside
    assert ORDER_KEPT in second.warned()

    third = _run(tmp_path / "third", "in_epochs", resume=second.paths.checkpoint(8), params=params, **changed)
    assert digest_checkpoint(third.committed[-1]) == digest_checkpoint(second.committed[-1])
    assert (ORDER_KEPT in third.warned()) is not inside


def test_of_an_older_checkpoint_the_seed_that_it_notes_is_kept(tmp_path: Path) -> None:
    """It stands beside the position; how the samples were ordered is not noted."""
    first = _run(tmp_path / "first", "in_epochs")
    path = first.paths.checkpoint(2)
    state = torch.load(path / "state.pt", weights_only=True)
    del state["position"]["seed"], state["position"]["shuffle"]
    torch.save(state, path / "state.pt")
    again = _run(tmp_path / "again", "in_epochs", resume=path, seed=1)

    assert _order(tmp_path / "again")[:4] == _order(tmp_path / "first")[2:6]
    assert again.warned() == [ORDER_KEPT]


def test_epochs_that_the_launcher_does_not_know_differ_and_are_told(tmp_path: Path) -> None:
    """`for epoch in range(3)` around batches(): each has an order of its own, and the run is told what a resume would do."""
    crew = _run(tmp_path / "run", "range_of_epochs")
    order = _order(tmp_path / "run")

    assert len({tuple(line.split("]")[0] for line in order[3 * n : 3 * n + 3]) for n in range(3)}) == 3
    assert [text for text in crew.warned() if "loop over worker.epochs(n)" in text]


def test_weights_swapped_through_data_are_not_saved(tmp_path: Path) -> None:
    """A stop comes while a moving average stands in for the weights, which torch does not count: nothing is saved, rather than that."""
    spec = make_spec(tmp_path, "looping_jobs:swapped", 1, kind="function")
    with Crew(spec, 1) as crew:
        crew.until(lambda *_: (tmp_path / "evaluates").exists())
        assert crew.stop_now() == 4
        words = crew.finish()

    saved = [launcher.load_checkpoint(path)["model"] for path in crew.committed]
    assert not any(bool((state["weight"] == 0).all()) for state in saved)
    assert words[0]["saved"] is bool(saved)


def test_steps_left_by_break_count_the_last_one(tmp_path: Path) -> None:
    """Five optimizer steps were made: the last checkpoint is of five."""
    crew = _run(tmp_path / "run", "left_steps")

    assert crew.messages("finished", 0)[0]["step"] == 5
    assert crew.committed[-1].name == "step-00000005"


def test_a_second_loop_keeps_the_global_batch(tmp_path: Path) -> None:
    """Begun on two ranks, resumed on three: the second loop's steps have the samples of two ranks, too."""
    full = _run(tmp_path / "full", "two_loops", ranks=2)
    _run(tmp_path / "again", "two_loops", ranks=3, resume=full.paths.checkpoint(2))
    sizes = [len(eval(line.split("]")[0] + "]")) for line in _order(tmp_path / "again")]

    assert max(sizes) == 3
    assert len(sizes) == 1 + 5


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("zipped", "batches() was called inside another loop over batches()"),
        ("epochs_of_its_own_loader", "step() was called inside epochs(), which knows epochs by batches()"),
        ("steps_behind", "steps() or restore_rng() was called after a loop over batches()"),
    ],
)
def test_loops_that_no_resume_could_continue_are_refused(tmp_path: Path, target: str, said: str) -> None:
    """At the first step, not at the first resume."""
    assert said in _refusal(tmp_path, target, kind="function")


def test_gradients_summed_by_hand_are_told(tmp_path: Path) -> None:
    """A checkpoint between them would lose them: once, with the way out."""
    crew = _run(tmp_path / "run", "by_hand")

    assert [text.count("use accumulate=") for text in crew.warned()] == [1]


@pytest.mark.parametrize(("how", "told"), [("summed", 1), ("learns seldom", 0), ("not registered", 0), ("skipped", 0)])
def test_gradients_summed_over_steps_are_told(tmp_path: Path, how: str, told: int) -> None:
    """In `steps`, too: once; not where a step leaves the gradients alone, a scaler skips steps, or nobody can know of the optimizer's."""
    crew = _run(tmp_path / "run", "by_hand_in_steps", params={"how": how})

    assert [text.count("sum them within one step of run.steps()") for text in crew.warned()] == [1] * told


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("Task", {"precision": "bfloat16"}, "Task.precision must be fp32 or bf16 or fp16, not 'bfloat16'"),
        ("Task", {"scheduler_every": "batch"}, "Task.scheduler_every must be epoch or step, not 'batch'"),
        ("Task", {"evaluate_every": 0}, "Task.evaluate_every must be a whole number of at least 1, not 0"),
        ("Task", {"test_batch_size": -4}, "Task.test_batch_size must be a whole number of at least 1, not -4"),
        ("OnPlateau", {}, "ReduceLROnPlateau needs a metric"),
    ],
)
def test_options_that_would_mean_nothing_are_refused(tmp_path: Path, target: str, options: Any, said: str) -> None:
    """fp32 under the name of bf16, a scheduler that never steps, an evaluation that fails after the first epoch."""
    assert said in _refusal(tmp_path, target, params=options)


def test_a_collate_function_may_be_a_class_attribute(tmp_path: Path) -> None:
    """It is given the samples, not the task."""
    assert _run(tmp_path / "run", "Collated", kind="task").messages("finished", 0)


def test_what_can_move_itself_moves_to_the_device() -> None:
    """A PackedSequence, and mappings that are no dicts, as transformers' batches are."""
    from collections import UserDict

    meta = torch.device("meta")
    packed = torch.nn.utils.rnn.pack_sequence([torch.zeros(3), torch.zeros(2)])

    assert to_device(packed, meta).data.device == meta
    assert to_device(UserDict(ids=torch.zeros(2)), meta)["ids"].device == meta
    assert len(numbers(3)) == 3
