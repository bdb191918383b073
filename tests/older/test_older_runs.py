"""Runs of an older version stay readable: each verb, on runs recorded with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from in_process import launcher
from unpacked import slurm_says, squeue_row, unpack

STATES = {
    "finished": ("completed", 16), "failed": ("failed", 11), "script": ("failed", 0), "requeued": ("completed", 16),
    "cancelled": ("cancelled", None),
}  # fmt: skip


class Older:
    """The recorded runs, and a SLURM that knows those that were alive."""

    def __init__(self, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs = unpack(here)
        self.asked = slurm_says(
            here,
            monkeypatch,
            squeue_row(self.runs["running"], "RUNNING", "None"),
            squeue_row(self.runs["queued"], "PENDING", "Resources"),
        )

    def job_id(self, name: str) -> str:
        """The job's id, as the older version wrote it down."""
        return str(json.loads((self.runs[name] / "submission.json").read_text())["job_id"])

    def status(self, name: str) -> dict[str, Any]:
        """What `launcher status --json` says of a run."""
        value: dict[str, Any] = json.loads(launcher("status", self.runs[name].name, "--json").output)
        return value


@pytest.fixture
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Older:
    """The recorded runs."""
    return Older(tmp_path, monkeypatch)


def test_older_runs_are_listed(older: Older) -> None:
    """`launcher ls` shows every one of them in its state, and the sweep as one line of two points."""
    lines = {line.split("-")[0]: line for line in launcher("ls").output.splitlines()}
    assert set(lines) == set(older.runs)
    for name, (state, _) in STATES.items():
        assert state in lines[name]
    assert "running" in lines["running"].split()
    assert "pending" in lines["queued"].split()
    assert "1 failed, 1 completed" in lines["sweep"]


def test_older_runs_have_their_status(older: Older) -> None:
    """State and step are those that the older version had written; a cancelled run that never ran has no step."""
    assert {name: (older.status(name)["state"], older.status(name)["step"]) for name in STATES} == STATES
    assert older.status("requeued")["attempt"] == 1
    assert older.status("running")["state"] == "running"
    assert older.status("running")["world_size"] == 8
    assert older.status("queued")["state"] == "pending"


def test_older_runs_are_explained(older: Older) -> None:
    """`launcher why` names rank, host, exception and the user's line, and how the other runs ended."""
    failed = launcher("why", older.runs["failed"].name).output
    assert failed.startswith("Rank 1 (node1) raised ValueError at step 11: label 17 is out of range.\n")
    assert 'raise ValueError("label 17 is out of range")' in failed
    script = launcher("why", older.runs["script"].name).output
    assert script.startswith("Rank 1 (node1) raised KeyError at step 0: 'no such image'.\n")
    assert "completed after step 16" in launcher("why", older.runs["requeued"].name).output
    assert "cancelled before it had started" in launcher("why", older.runs["cancelled"].name).output


def test_older_runs_have_reports_logs_and_histories(older: Older) -> None:
    """The page is written, each rank's log is found, and every recorded event is told again, in order."""
    for name in ("finished", "failed", "requeued", "running"):
        launcher("report", older.runs[name].name, "-o", f"{name}.html")
        assert older.runs[name].name in Path(f"{name}.html").read_text()
    assert "no such image" in launcher("logs", older.runs["script"].name, "--rank", "1").output
    for name in ("finished", "failed", "requeued"):
        told = [json.loads(line) for line in launcher("watch", "--json", older.runs[name].name).output.splitlines()]
        written = [json.loads(line) for line in (older.runs[name] / "events.jsonl").read_text().splitlines()]
        assert [(e["t"], e["type"]) for e in told if e["type"] != "state"] == [(e["t"], e["type"]) for e in written]


@pytest.mark.parametrize("name", ["queued", "running"])
def test_older_runs_can_be_cancelled(older: Older, name: str) -> None:
    """A run that an older version submitted, waiting or running, is cancelled by its job id."""
    launcher("cancel", older.runs[name].name)
    asked = [line.split() for line in older.asked.read_text().splitlines()]
    assert ["scancel", older.job_id(name)] in [[words[0], words[-1]] for words in asked]


def test_older_checkpoints_are_found(older: Older) -> None:
    """`launcher resubmit` would go on from the newest committed one: status tells its step."""
    assert older.status("running")["saved_step"] == max(
        int(path.name.removeprefix("step-")) for path in (older.runs["running"] / "checkpoints").glob("step-*")
    )
