"""What is not there, and what could not be asked: no error of a file system is taken for a fact."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from an_event import an_event
from away import Away

from launcher.run import asking, event_lines
from launcher.run.asking import NotAskedError, ask_once, exists, load_lines, load_object, may_pass, names, patiently
from launcher.run.paths import RunPaths
from launcher.run.state import is_requested

AWAY = [errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EACCES, errno.ETIMEDOUT, errno.EHOSTDOWN]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    root = tmp_path / "run"
    (root / "attempts").mkdir(parents=True)
    return root


def test_what_a_listed_folder_does_not_hold_is_not_there(run: Path) -> None:
    """At the top, below a folder that is there, and below one that is not: nothing, and no error."""
    assert names(run / "checkpoints", run) == []
    assert not exists(run / "outcome.json", run)
    assert load_object(run / "attempts" / "0" / "claim.json", run) is None
    assert load_lines(run / "events.jsonl", run) == []


@pytest.mark.parametrize("number", AWAY)
def test_what_could_not_be_asked_is_an_error(run: Path, away: Away, number: int) -> None:
    """A listing, a look and a read that fail are no empty folder, no missing file and no empty history."""
    away.refuse(run / "attempts", number)

    for look in (names, exists, load_object, load_lines):
        with pytest.raises(OSError, match=os.strerror(number).split("(")[0]):
            look(run / "attempts", run)


def test_a_run_folder_that_is_not_there_says_nothing(run: Path) -> None:
    """Its mount is away: ENOENT of everything below is no fact, however deep."""
    run.rename(run.with_name("moved"))

    for look in (names, exists, load_object, load_lines):
        for path in (run / "attempts", run / "attempts" / "0" / "claim.json"):
            with pytest.raises(FileNotFoundError):
                look(path, run)


def test_a_folder_that_comes_back_between_two_looks_is_no_missing_file(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look fails while the mount is away, the listing behind it finds the name: what it holds is not known yet."""
    real, moved = os.listdir, run.with_name("moved")
    run.rename(moved)

    def back(path):
        if not run.exists():
            if os.fspath(path) != str(run):
                return real(path)
            moved.rename(run)
        return real(path)

    monkeypatch.setattr(os, "listdir", back)
    with pytest.raises(FileNotFoundError):
        exists(run / "attempts", run)
    assert exists(run / "attempts", run)


def test_patience_ends(run: Path, away: Away, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked again every second while it may pass; the error of the last try is what is raised."""
    away.refuse(run / "attempts", times=4)
    slept: list[float] = []
    monkeypatch.setattr(asking, "time", SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept)))

    assert patiently(lambda: names(run / "attempts", run), run) == []
    assert (len(away.refused), sum(slept)) == (4, 4 * asking.AGAIN_S)

    slept.clear()
    away.refuse(run / "attempts", errno.ESTALE)
    with pytest.raises(NotAskedError):
        patiently(lambda: names(run / "attempts", run), run)
    assert sum(slept) == asking.PATIENCE_S


def test_facts_are_not_asked_for_again(run: Path) -> None:
    """A full disk, a folder that is certainly missing, an error of the launcher's own: as they are, at once."""

    def missing() -> None:
        (run / "checkpoints" / "tmp.0.0.1" / "rank-0").write_bytes(b"")

    with pytest.raises(FileNotFoundError) as caught:
        ask_once(missing, run)
    assert not isinstance(caught.value, NotAskedError)
    assert not may_pass(OSError(errno.ENOSPC, "full"), run)
    assert not may_pass(asking.OwnError(errno.EIO, "a rank's part is incomplete"), run)
    run.rename(run.with_name("moved"))
    with pytest.raises(NotAskedError):
        ask_once(missing, run)


def test_a_history_that_decides_is_read_or_not_known(run: Path, away: Away) -> None:
    """`read` is for those that show it; `recall` never makes an empty history of an error."""
    event_lines.append(run / "events.jsonl", an_event("submitted", attempt=None))
    assert event_lines.read(run / "events.jsonl") == event_lines.recall(run / "events.jsonl") != []

    away.refuse(run / "events.jsonl")
    assert event_lines.read(run / "events.jsonl") == []
    with pytest.raises(OSError, match="Input/output error"):
        event_lines.recall(run / "events.jsonl")


def test_a_request_is_there_as_far_as_the_folder_answers(run: Path, away: Away) -> None:
    """One that cannot be asked for counts as none for now; whoever leads next asks with patience."""
    paths = RunPaths(run)
    assert not is_requested(paths)
    paths.request.write_text("{}")
    assert is_requested(paths)

    away.refuse(paths.request)
    assert not is_requested(paths)
