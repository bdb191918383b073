"""Bitwise resume: interrupted runs end with the same bits as the one that was not, at any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from crew import Crew, make_spec, run

from launcher.run.paths import RunPaths
from launcher.run.spec import CheckpointSpec, DdpSpec
from launcher.training.checkpoint.checkpoint_digest import digest_checkpoint
from launcher.training.checkpoint.read import load_rank

EVERY = CheckpointSpec(interval_steps=1, keep_last=1000)
SELDOM = CheckpointSpec(interval_min=1000)


def final_digest(crew: Crew) -> dict[str, str]:
    """The digest of a finished run's last checkpoint."""
    return digest_checkpoint(crew.committed[-1])


def resumed_digest(
    tmp_path: Path, full: Crew, step: int, target: str, world_size: int, **values: Any
) -> dict[str, str]:
    """Start from the full run's checkpoint of ``step`` and run to the end."""
    spec = make_spec(tmp_path / f"from-{step}", target, world_size, checkpoint=SELDOM, **values)
    crew = run(spec, world_size, resume=full.paths.checkpoint(step))
    return final_digest(crew)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_a_run_resumed_anywhere_ends_bitwise_equal(tmp_path: Path, world_size: int) -> None:
    """From the first step, mid-epoch and at an epoch's end; the run that saves at every step equals one that never does."""
    full = run(make_spec(tmp_path / "full", "small_jobs:Net", world_size, checkpoint=EVERY), world_size)
    quiet = run(make_spec(tmp_path / "quiet", "small_jobs:Net", world_size, checkpoint=SELDOM), world_size)
    last = full.messages("finished", 0)[0]["step"]
    expected = final_digest(full)

    assert final_digest(quiet) == expected
    for step in (1, last // 2, last // 2 + 2):
        assert resumed_digest(tmp_path, full, step, "small_jobs:Net", world_size) == expected, step


@pytest.mark.parametrize("world_size", [5, 8])
def test_many_ranks_resume_bitwise(tmp_path: Path, world_size: int) -> None:
    """Summation order is fixed from the first step on: with many ranks a difference would show at once."""
    values: dict[str, Any] = {"params": {"samples": 12 * world_size, "hidden": 64, "epochs": 1, "batch_size": 2}}
    full = run(make_spec(tmp_path / "full", "small_jobs:Net", world_size, checkpoint=EVERY, **values), world_size)

    assert resumed_digest(tmp_path, full, 3, "small_jobs:Net", world_size, **values) == final_digest(full)


VARIANTS: dict[str, dict[str, Any]] = {
    "accumulate": {"accumulate": 2, "batch_size": 2, "dropout": 0.0},
    "accumulate-short-end": {"accumulate": 3, "batch_size": 2, "samples": 64, "dropout": 0.0},
    "fp16-scaler": {"precision": "fp16"},
    "bf16": {"precision": "bf16"},
    "loader-processes": {"num_workers": 2, "noisy": True},
    "augmentation": {"noisy": True},
    "scheduler-per-step": {"scheduler_every": "step"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_state_is_resumed(tmp_path: Path, variant: str) -> None:
    """Accumulation, scaler, autocast, loader processes, augmentation, schedulers: mid-epoch, at W = 3."""
    values: dict[str, Any] = {"params": VARIANTS[variant]}
    full = run(make_spec(tmp_path / "full", "small_jobs:Net", 3, checkpoint=EVERY, **values), 3)

    assert resumed_digest(tmp_path, full, 3, "small_jobs:Net", 3, **values) == final_digest(full)


def test_a_static_graph_accumulates(tmp_path: Path) -> None:
    """DDP's `no_sync` fails in a static graph's first backward pass: the gradients of each micro-batch are exchanged."""
    values: dict[str, Any] = {"params": VARIANTS["accumulate"], "ddp": DdpSpec(static_graph=True)}
    full = run(make_spec(tmp_path / "full", "small_jobs:Net", 3, checkpoint=EVERY, **values), 3)

    assert resumed_digest(tmp_path, full, 3, "small_jobs:Net", 3, **values) == final_digest(full)


@pytest.mark.parametrize("nested", [True, False])
def test_a_function_with_its_own_loop_resumes_bitwise(tmp_path: Path, nested: bool) -> None:
    """`worker.batches` alone, and inside `worker.epochs` with a scheduler stepped after it, at an epoch's end too."""
    values: dict[str, Any] = {"kind": "function", "params": {"nested": nested}}
    full = run(make_spec(tmp_path / "full", "small_jobs:own_loop", 3, checkpoint=EVERY, **values), 3)
    last = full.messages("finished", 0)[0]["step"]

    for step in (last // 2 - 1, last // 2):
        assert resumed_digest(tmp_path, full, step, "small_jobs:own_loop", 3, **values) == final_digest(full), step


def test_three_agreed_stops_in_a_row_change_nothing(tmp_path: Path) -> None:
    """Second and third resume: stopped mid-epoch, at an epoch's end and one step later, each saved where it stopped."""
    undisturbed = run(make_spec(tmp_path / "full", "small_jobs:Net", 3, checkpoint=SELDOM), 3)
    spec = make_spec(tmp_path / "stopped", "small_jobs:Net", 3, checkpoint=SELDOM)
    paths = RunPaths(tmp_path / "stopped")
    resume = None
    for attempt, step in enumerate((2, 5, 6)):
        first = [{"type": "stop", "step": step, "save": True}]
        with Crew(spec, 3, resume=resume, attempt=attempt, first=first) as crew:
            words = crew.finish()
            assert {(w["type"], w["step"], w["saved"]) for w in words.values()} == {("stopped", step, True)}, (
                crew.logs()
            )
            assert set(crew.exit_codes().values()) == {0}
            resume = paths.checkpoint(step)
    end = run(spec, 3, resume=resume, attempt=3)

    assert final_digest(end) == final_digest(undisturbed)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_steps_of_ones_own_resume_bitwise(tmp_path: Path, world_size: int) -> None:
    """`worker.steps`: python's, numpy's and torch's generators and per-rank objects go on where the checkpoint has them."""
    target, values = "small_jobs:own_steps", {"kind": "function"}
    full = run(make_spec(tmp_path / "full", target, world_size, checkpoint=EVERY, **values), world_size)
    expected = final_digest(full)

    for step in (1, 7):
        assert resumed_digest(tmp_path, full, step, target, world_size, **values) == expected, step
    assert len(load_rank(full.committed[-1], 0)["objects"]["diary"]["lines"]) == 3 * 12


def test_steps_counted_by_hand_resume_with_a_warning(tmp_path: Path) -> None:
    """A loop that only calls `step` goes on from the right step; that its random numbers do not is said."""
    values: dict[str, Any] = {"kind": "function", "params": {"way": "step"}}
    full = run(make_spec(tmp_path / "full", "small_jobs:own_steps", 1, checkpoint=EVERY, **values), 1)
    spec = make_spec(tmp_path / "again", "small_jobs:own_steps", 1, checkpoint=SELDOM, **values)
    again = run(spec, 1, resume=full.paths.checkpoint(5))

    assert not full.messages("warning")
    assert ["run.steps()" in m["text"] for m in again.messages("warning")] == [True]
    assert again.messages("finished")[0]["step"] == 12


def test_a_state_that_all_ranks_share_is_shared_by_more_of_them(tmp_path: Path) -> None:
    """Ranks that draw alike (one permutation for all) draw on alike, and the same, when their number changes."""
    values: dict[str, Any] = {"kind": "function", "params": {"alike": True}}
    full = run(make_spec(tmp_path / "full", "small_jobs:own_steps", 2, checkpoint=EVERY, **values), 2)
    spec = make_spec(tmp_path / "three", "small_jobs:own_steps", 3, checkpoint=SELDOM, **values)
    three = run(spec, 3, resume=full.paths.checkpoint(6))
    drawn = load_rank(full.committed[-1], 0)["objects"]["diary"]["lines"][3 * 6 :]

    assert [load_rank(three.committed[-1], rank)["objects"]["diary"]["lines"] for rank in range(3)] == [drawn] * 3


def test_state_that_nothing_is_registered_for_stops_a_resume(tmp_path: Path) -> None:
    """A checkpoint with more objects than the job registers now: one sentence that names them, no silent loss."""
    full = run(make_spec(tmp_path / "full", "small_jobs:own_steps", 1, checkpoint=EVERY, kind="function"), 1)
    values: dict[str, Any] = {"kind": "function", "params": {"forget": True}}
    spec = make_spec(tmp_path / "other", "small_jobs:own_steps", 1, checkpoint=SELDOM, **values)
    with Crew(spec, 1, resume=full.paths.checkpoint(5)) as crew:
        word = crew.finish()[0]

    assert (word["type"], word["exception"]) == ("failed", "launcher.errors.CheckpointError")
    assert word["message"].endswith("objects that are not registered: optimizer")


def test_an_epochs_last_step_is_told_before_evaluation(tmp_path: Path) -> None:
    """Steps of a millisecond, told ten times a second: what is known during a long evaluation is the step before it."""
    crew = run(make_spec(tmp_path / "run", "small_jobs:Net", 1, checkpoint=SELDOM), 1)
    heard = [message for _, message in crew.seen]
    evaluation = next(i for i, m in enumerate(heard) if m["type"] == "phase" and m["name"] == "evaluate")

    assert [m["step"] for m in heard[:evaluation] if m["type"] == "progress"][-1] == 15


@pytest.mark.parametrize("kind", ["function", "script"])
def test_deterministic_reaches_torch(tmp_path: Path, kind: str) -> None:
    """Functions and scripts alike find deterministic algorithms on, cuDNN's timed choice off."""
    out = tmp_path / "told"
    (tmp_path / "told.py").write_text(f"import small_jobs\nsmall_jobs.told_to_be_deterministic(None, {str(out)!r})\n")
    target = "small_jobs:told_to_be_deterministic" if kind == "function" else str(tmp_path / "told.py")
    values: dict[str, Any] = {"params": {"out": str(out)}} if kind == "function" else {}
    run(make_spec(tmp_path / "run", target, 1, kind=kind, deterministic=True, checkpoint=SELDOM, **values), 1)

    assert out.read_text() == "[True, False]"
