"""What dry-run prints of a rehearsal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.cli.dry_run import _own_folder, rehearsal_lines
from launcher.errors import DrillError, RunDirError
from launcher.run.worker_texts import UNORDERED
from launcher.submission.rehearsal.rehearse import Rehearsal, RehearsedRun, check_drill

FIRST = RehearsedRun(
    run_dir="/runs/r", steps=20, step_time_s=0.25, rank_bytes=3 * 2**30, save_s=1.5, save_blocked_s=0.0125,
    checkpoint_bytes=512 * 2**20, total_steps=14_400, warnings=(), ended=True,
)  # fmt: skip
WHOLE = Rehearsal(FIRST, FIRST, (1, 12), 9)


def test_everything_that_a_user_wants_to_know() -> None:
    """Step time, memory per rank, checkpoint size and save time, the wall time against the limit, and the drill."""
    assert rehearsal_lines(WHOLE, 90) == [
        "  step     250 ms (median of 20)",
        "  memory   3,072 MiB at most in one rank",
        "  save     537 MB in 1.50 s, training waits 12.5 ms",
        "  wall     1 h at this machine's speed; with a limit of 90 min it fits one attempt",
        "  drill    passed: rank 1 killed at step 12, resumed from 9, same final state",
    ]


@pytest.mark.parametrize(
    ("limit_min", "words"), [(61, "fits one attempt"), (59, "takes 2 attempts"), (15, "takes 5 attempts")]
)
def test_the_wall_time_is_held_against_the_limit(limit_min: int, words: str) -> None:
    """14,400 steps of 0.25 s are an hour."""
    (line,) = [line for line in rehearsal_lines(WHOLE, limit_min) if line.startswith("  wall")]

    assert line.endswith(f"with a limit of {limit_min} min it {words}")


def test_what_was_not_measured_is_left_out() -> None:
    """A script that reports nothing: its memory and the note, no figure made up, no drill claimed."""
    first = replace(FIRST, step_time_s=None, save_s=None, checkpoint_bytes=None, total_steps=None)
    said = rehearsal_lines(Rehearsal(first, None, None, None, notes=("no drill: its own business",)), 90)

    assert said == ["  note     no drill: its own business", "  memory   3,072 MiB at most in one rank"]


def test_a_failed_drill_is_not_said_to_have_passed() -> None:
    """What differs is the error's sentence; the lines hold no word of a passed drill."""
    assert not [line for line in rehearsal_lines(replace(WHOLE, differs=("model",)), 90) if "drill" in line]


def test_on_real_nodes_they_are_named() -> None:
    """With the bandwidth of their checks, and warnings before everything."""
    first = replace(FIRST, hosts=("n1", "n2"), bandwidth_gb_s=11.25, warnings=("slow",))
    said = rehearsal_lines(replace(WHOLE, first=first), 90, real=True)

    assert said[:2] == ["  warning  slow", "  nodes    n1, n2: checks passed; all-reduce 11.25 GB/s"]
    assert "at these nodes' speed" in said[-2]


def test_a_model_whose_first_step_differs_is_blamed() -> None:
    """A failed drill names DistributedDataParallel's order, of which the workers warned, not an unknown state."""
    warned = replace(FIRST, warnings=(f"{UNORDERED}; use run.wrap(model)",), digests={"model": "1"})

    with pytest.raises(DrillError, match=r"DistributedDataParallel adds up .* use run.wrap\(model\)"):
        check_drill(replace(WHOLE, first=warned, differs=("model",)))


@pytest.mark.parametrize(
    ("differs", "causes"),
    [
        (("all", "rng"), r"iter\(loader\) inside the loop, .* a batch that is fetched before the loop"),
        (("all", "model", "rng"), r"iter\(loader\) inside the loop, .* a batch that is fetched before the loop"),
        (("all", "model"), r"is not saved: .* a batch fetched ahead"),
    ],
)
def test_a_failed_drill_names_the_usual_causes(differs: tuple[str, ...], causes: str) -> None:
    """Other random numbers come from a loader opened in the loop or a batch before it; both are explained in docs/scripts.md."""
    first = replace(FIRST, digests={"model": "1"})

    with pytest.raises(DrillError, match=rf"{causes}.*docs/scripts\.md"):
        check_drill(replace(WHOLE, first=first, differs=differs))


def test_a_folder_of_runs_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    """A rehearsal on real nodes keeps its runs where the job's are; below a file there is no folder."""
    (tmp_path / "file").touch()
    with (
        pytest.raises(RunDirError, match="file/runs: not a directory; set runs_dir"),
        _own_folder(str(tmp_path / "file" / "runs")),
    ):
        pass
