"""The run's folder is deleted or moved under a running leader: minutes to put it back, then one sentence, and no requeue."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from acts import stop_at

from launcher.errors import RunDirError, RunGoneError
from launcher.run import index
from launcher.run.batch import GONE
from launcher.run.files import read_lines
from launcher.run.gone import Anchor
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's list of runs is this test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return index.links_dir()


def long_run(world, **changes):
    """20 minutes of training that saves seldom; the run is in the user's list."""
    w = world(**{"checkpoint": {"interval_steps": 50, "keep_last": 9}, **changes})
    w.step_s, w.total_steps = 4.0, 300
    index.register(w.paths.root)
    return w


def at(w, step, act):
    """``act`` once somebody is at ``step``."""
    left = [act]
    w.hooks[step] = [lambda worker: left.pop()() if left else None]


def remarks(w):
    return [said[1] for said in w.allocation.said if said[0] == "remark"]


def test_a_folder_that_is_moved_and_put_back_costs_nothing(world, virtual):
    """Away for four minutes, under another name in the same folder: one attempt, one round, all checkpoints."""
    w = long_run(world)
    hidden = w.paths.root.with_name("hidden")
    at(w, 60, lambda: w.paths.root.rename(hidden))
    at(w, 100, lambda: hidden.rename(w.paths.root))

    assert virtual(w.attempt_once()).state == "completed"
    assert len(w.events("round_started")) == 1
    assert [e["step"] for e in w.events("saved")][-1] == 300
    assert any("was moved to" in e["text"] for e in w.events("warning"))
    assert remarks(w) == []


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_folder_that_was_moved_for_good(world, virtual, tmp_path, elsewhere, home):
    """Failed and not requeued, with the new place in the sentence; history and outcome are there, and the name leads there."""
    w = long_run(world)
    new = (tmp_path / "archive" if elsewhere else w.paths.root.parent) / w.paths.root.name.upper()
    new.parent.mkdir(exist_ok=True)
    at(w, 60, lambda: w.paths.root.rename(new))

    ending = virtual(w.attempt_once())

    assert (ending.state, ending.exit_code) == ("failed", GONE)
    assert ending.reason == (
        f"The run's folder {w.paths.root} was moved to {new}; a running job cannot follow it: `launcher resubmit` with the "
        "new folder continues the run. The newest checkpoint is of step 50."
    )
    assert not w.paths.root.exists()
    moved = RunPaths(new)
    assert read_outcome(moved.outcome)["reason"] == ending.reason
    assert [e["type"] for e in read_lines(moved.events)][-3:] == ["decision", "attempt_ended", "ended"]
    assert ("forbid_requeue",) in w.allocation.said
    assert remarks(w) == [ending.reason]
    assert os.readlink(home / w.paths.root.name) == str(new)


@pytest.mark.parametrize("how", ["deleted", "emptied"])
def test_a_folder_that_was_deleted(world, virtual, how):
    """Failed after the patience, in one sentence, though the leader's own writes may have kept the empty folder there."""
    w = long_run(world)

    def delete():
        shutil.rmtree(w.paths.root)
        if how == "emptied":
            w.paths.root.mkdir()

    if how == "emptied":
        real = w.paths.root
        at(w, 60, lambda: [shutil.rmtree(p) if p.is_dir() else p.unlink() for p in real.iterdir()])
    else:
        at(w, 60, delete)
    ending = virtual(w.attempt_once())

    assert (ending.state, ending.exit_code) == ("failed", GONE)
    assert ending.reason == (
        f"The run's folder {w.paths.root} is gone: it was deleted, or moved to another file system; nothing is left to go on with."
    )
    assert ("forbid_requeue",) in w.allocation.said
    assert remarks(w) == [ending.reason]
    assert not [said for said in w.allocation.said if said[0] == "hand_back"]
    shutil.rmtree(w.paths.root, ignore_errors=True)
    with pytest.raises(RunGoneError, match=r"deleted or moved.*ended with: The run's folder .* is gone") as told:
        index.resolve(w.paths.root.name)
    assert told.value.run_id == w.paths.root.name


def test_a_failure_while_the_folder_is_gone(world, virtual):
    """No round can begin: the same sentence after the patience, and not `did not answer`."""
    w = long_run(world)
    at(w, 60, lambda: shutil.rmtree(w.paths.root))
    w.hooks[62] = [lambda worker: worker.die(9) if worker.rank == 1 else None]

    ending = virtual(w.attempt_once())

    assert (ending.state, ending.exit_code) == ("failed", GONE), ending.reason
    assert "is gone: it was deleted" in ending.reason


def test_a_preemption_while_the_folder_is_moved(world, virtual):
    """It may be put back before the job starts again: requeued, and the job's comment says why it may not start."""
    w = long_run(world, site={"grace_s": 20})
    at(w, 60, lambda: w.paths.root.rename(w.paths.root.with_name("hidden")))

    ending = virtual(w.attempt_once(stop_at(w, 65)))

    assert ending.state == "requeued"
    assert [r for r in remarks(w) if "was moved to" in r]


def test_a_mount_that_is_away_is_no_deletion(tmp_path):
    """The folder around it is missing, another one, or refuses to answer: nobody knows. Moved with that folder: known."""
    root = tmp_path / "mnt" / "runs" / "r"
    (root / "attempts").mkdir(parents=True)
    anchor = Anchor(root)
    assert anchor.look() is None

    (tmp_path / "mnt").rename(tmp_path / "elsewhere")
    assert anchor.look().place == tmp_path / "elsewhere" / "runs" / "r"

    held, anchor._fd = (
        anchor._fd,
        os.open(tmp_path, os.O_RDONLY),
    )  # as a mount that is away: the kernel's name leads nowhere
    try:
        assert anchor.look() is None
        (tmp_path / "mnt" / "runs").mkdir(parents=True)
        assert anchor.look() is None
    finally:
        os.close(anchor._fd)
        anchor._fd = held
    os.rename(tmp_path / "elsewhere" / "runs" / "r", root)
    assert anchor.look() is None


def test_an_attempt_that_begins_without_its_folder(world, virtual):
    """Asked for in vain for minutes, by a leader that has never held it: one sentence, in the job's comment, too."""
    w = long_run(world)
    shutil.rmtree(w.paths.root)

    with pytest.raises(RunDirError) as told:
        virtual(w.attempt_once())

    sentence = f"The run directory {w.paths.root} is not there: it was deleted or moved, or its file system is away."
    assert str(told.value) == sentence
    assert remarks(w) == [sentence]
    assert not w.paths.root.exists()
