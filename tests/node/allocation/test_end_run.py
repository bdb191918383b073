"""Runs that end without a leader: what is written and who is told."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.node.allocation.allocation import Allocation
from launcher.node.allocation.end_run import end_run
from launcher.node.sidecars import notify, trackers
from launcher.run.paths import RunPaths
from launcher.run.processes import is_alive
from launcher.run.spec import RunSpec, Work
from launcher.run.state import read_outcome


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A run's folder with the passed variable HOOK, and a messenger that keeps its standard input and environment."""
    folder = tmp_path / "run"
    folder.mkdir()
    messenger(tmp_path, f'env > "{tmp_path}/env"\ncat > "{tmp_path}/letter"')
    paths = RunPaths(folder)
    paths.passed.write_text(json.dumps({"HOOK": "json://hook/t0ken"}))
    return paths


def messenger(tmp_path: Path, does: str) -> None:
    """The run's python."""
    (tmp_path / "python").write_text(f'#!/bin/sh\n[ "$*" = "-m launcher.node.sidecars.notify" ] || exit 1\n{does}\n')
    (tmp_path / "python").chmod(0o755)


def write_spec(paths: RunPaths, **changes: Any) -> None:
    values: dict[str, Any] = {
        "id": "demo-1", "name": "demo", "run_dir": str(paths.root), "work": Work(kind="script", target="x.py"), "batch": "slurm",
        "nodes": 1, "tasks_per_node": 1, "timeout_min": 1, "backend": "gloo", "python": str(paths.root.parent / "python"),
        "notify": {"urls": ["HOOK"], "on": ["failed"]}, "variables": {"PROXY": "here"},
    }  # fmt: skip
    RunSpec(**{**values, **changes}).write(paths.spec)


def end(paths: RunPaths, state: str) -> dict[str, Any] | None:
    """The message that went out, if one did."""
    end_run(paths, Allocation(paths), 0, state, "No agent could begin, 4 times in a row.")
    outcome = read_outcome(paths.outcome)
    assert outcome is not None
    assert outcome["state"] == state
    letter = paths.root.parent / "letter"
    return json.loads(letter.read_text()) if letter.exists() else None


def test_a_failure_without_a_leader_is_notified(paths: RunPaths, tmp_path: Path) -> None:
    """The variables passed by name are read before they are removed; the process has the agents' variables, too."""
    write_spec(paths)
    said = {"urls": ["json://hook/t0ken"], "title": "demo-1", "body": "No agent could begin, 4 times in a row."}
    assert end(paths, "failed") == {**said, "run_dir": str(paths.root)}  # `launcher why` words it
    assert {"HOOK=json://hook/t0ken", "PROXY=here"} <= set((tmp_path / "env").read_text().splitlines())
    assert not paths.passed.exists()


@pytest.mark.parametrize(
    ("state", "changes"),
    [
        ("cancelled", {}),
        ("failed", {"held_by": "hold-1"}),
        ("failed", {"python": "/in/a/container/python"}),
        ("failed", {"notify": {}}),
    ],
)
def test_nothing_is_sent_that_was_not_asked_for_or_cannot_be(paths: RunPaths, state: str, changes: Any) -> None:
    """The end is written all the same."""
    write_spec(paths, **changes)
    assert end(paths, state) is None
    assert not paths.passed.exists()


def test_a_cancel_is_notified_where_the_job_asks_for_that(paths: RunPaths) -> None:
    """It is no failure: nothing is asked of `launcher why`."""
    write_spec(paths, notify={"urls": ["HOOK"], "on": ["cancelled"]})
    letter = end(paths, "cancelled")
    assert letter is not None
    assert "run_dir" not in letter


def test_a_message_that_hangs_holds_the_job_for_seconds(paths: RunPaths, tmp_path: Path, monkeypatch: Any) -> None:
    """The messenger is killed."""
    monkeypatch.setattr(notify, "_END_S", 0.2)
    messenger(tmp_path, "exec sleep 600")
    write_spec(paths)
    began = time.monotonic()
    assert end(paths, "failed") is None
    assert time.monotonic() - began < 60


def test_trackers_get_the_rest_of_a_run_that_ends_without_a_leader(paths: RunPaths, tmp_path: Path) -> None:
    """In MLflow it ran for ever. They are told once the outcome is there, with the variables passed by name; their words are in their log."""
    (tmp_path / "python").write_text(f'#!/bin/sh\necho "$*"\ncat "{paths.outcome}"\necho "$HOOK $PROXY" >&2\n')
    write_spec(paths, notify={}, trackers={"mlflow": {}})
    end(paths, "failed")

    first, *outcome, last = (paths.trackers / "log").read_text().splitlines()
    assert first == f"-m launcher.node.sidecars.trackers {paths.root}"
    assert json.loads("\n".join(outcome))["state"] == "failed"
    assert last == "json://hook/t0ken here"


def test_trackers_that_hang_hold_no_nodes(paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are killed, with what they have started, and the run has ended."""
    monkeypatch.setattr(trackers, "_REST_S", 3.0)
    (tmp_path / "python").write_text("#!/bin/sh\nsleep 600 &\necho $!\nwait\n")
    write_spec(paths, notify={}, trackers={"mlflow": {}})
    began = time.monotonic()
    end(paths, "cancelled")

    assert time.monotonic() - began < 30
    while is_alive(int((paths.trackers / "log").read_text()), None):
        assert time.monotonic() - began < 60
        time.sleep(0.01)
