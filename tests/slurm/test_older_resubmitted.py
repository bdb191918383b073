"""Runs of an older version go on: resubmitted, forked and repeated by today's code, on the real cluster."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from login import Login

sys.path.insert(0, str(Path(__file__).parents[1] / "older"))
from unpacked import unpack


@pytest.fixture
def older(place: Login) -> dict[str, Path]:
    """The recorded runs, below the folder in which this user works."""
    return unpack(place.folder)


def test_older_runs_are_resubmitted(place: Login, older: dict[str, Path]) -> None:
    """One that failed, one that SLURM has forgotten while it ran and one that never started go on from what they have."""
    place.launcher("resubmit", older["failed"].name, "params.fail_at=-1", "--wait")
    place.launcher(
        "resubmit", older["running"].name, "params.step_s=0", "params.epochs=30", "resources.nodes=2", "--wait"
    )
    place.launcher("resubmit", older["queued"].name, "--wait")
    for name in ("failed", "running", "queued"):
        outcome = json.loads((older[name] / "outcome.json").read_text())
        assert outcome["state"] == "completed", name
    rounds = [json.loads(line) for line in (older["running"] / "events.jsonl").read_text().splitlines()]
    last = [event for event in rounds if event["type"] == "round_started"][-1]
    assert last["resume_step"] > 0


def test_an_older_checkpoint_is_forked(place: Login, older: dict[str, Path]) -> None:
    """A new run begins at the last step of the finished one."""
    place.launcher("resubmit", older["finished"].name, "--fork", "forked", "params.epochs=3", "--wait")
    started = next(e for e in place.run("forked").events.read_text().splitlines() if "round_started" in e)
    assert json.loads(started)["resume_step"] == 16


def test_failed_points_of_an_older_sweep_are_resubmitted(place: Login, older: dict[str, Path]) -> None:
    """`--failed` repeats the one point that failed; it fails again, at the same step."""
    place.launcher("resubmit", "--failed", older["sweep"].name, "--wait", ok=False)
    outcomes = {p.parent.name: json.loads(p.read_text()) for p in older["sweep"].glob("sweep-*/outcome.json")}
    assert sorted(outcome["state"] for outcome in outcomes.values()) == ["completed", "failed"]
    failed = next(o for o in outcomes.values() if o["state"] == "failed")
    assert "label 17 is out of range" in failed["reason"]
