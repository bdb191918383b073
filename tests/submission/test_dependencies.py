"""Which runs a job waits for, and after which it can never start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from an_event import an_event
from squeue import squeue_line

from launcher.config.document.schema import After
from launcher.errors import StateError
from launcher.run import event_lines
from launcher.run.paths import RunPaths
from launcher.submission.dependencies import predecessors


@pytest.fixture
def first(home: Path) -> RunPaths:
    """A run in SLURM without an outcome."""
    paths = RunPaths(home / "runs" / "first-1121-0842-k7f")
    paths.root.mkdir(parents=True)
    paths.spec.write_text("{}")
    paths.submission.write_text(json.dumps({"backend": "slurm", "job_id": "42", "job_folder": str(paths.submitit)}))
    event_lines.append(paths.events, an_event("attempt_started", attempt=0, job_id="42"))
    return paths


@pytest.mark.parametrize("told_by", ["history", "SLURM"])
def test_a_completed_run_whose_outcome_is_not_seen_yet_has_completed(
    first: RunPaths, slurm: Path, told_by: str
) -> None:
    """NFS shows a new file late: what comes after it may start, what waits for its failure is refused."""
    if told_by == "history":
        event_lines.append(
            first.events, an_event("ended", attempt=0, state="completed", reason="All is done.", exit_code=0)
        )
    else:
        (slurm / "queue").write_text(squeue_line("42", "COMPLETED", first.id))
    assert predecessors(str(first.root)) == []
    with pytest.raises(StateError, match="had to fail first, completed"):
        predecessors(After(fails=[str(first.root)]))


@pytest.mark.parametrize("state", ["", "FAILED", "CANCELLED"])
def test_a_run_that_was_killed_has_failed(first: RunPaths, slurm: Path, state: str) -> None:
    """It left no last word, and SLURM does not say that its batch script ended well."""
    (slurm / "queue").write_text(squeue_line("42", state, first.id) if state else "")
    with pytest.raises(StateError, match="had to complete first, failed"):
        predecessors(str(first.root))
    assert predecessors(After(fails=[str(first.root)])) == []


def test_what_a_hold_did_says_nothing_of_its_rerun(first: RunPaths, slurm: Path) -> None:
    """The job that completed is the hold's: a rerun in it that left no last word has failed."""
    hold = first.beside("hold-1121-0800-abc")
    hold.root.mkdir()
    told = json.loads(first.submission.read_text())
    first.submission.write_text(json.dumps({**told, "hold": hold.id}))
    (slurm / "queue").write_text(squeue_line("42", "COMPLETED", first.id))
    with pytest.raises(StateError, match="had to complete first, failed"):
        predecessors(str(first.root))
