"""How `launcher rerun` follows its run: by what the hold's leader says, and by the run's files where the connection is lost."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.cli import rerun
from launcher.cli.rerun import _Following
from launcher.errors import RunCancelledError, RunFailedError, StateError
from launcher.node.wire.hold_messages import RerunAccepted, RerunFinished, RerunRefused, StartRerun, StopRerun
from launcher.run import event_lines, events
from launcher.run.paths import RunPaths
from launcher.submission.reruns import submit_rerun

RUN, HOLD = "toy-1126-2000-abc", "hold-toy-1126-1900-xyz"


class Link:
    """The hold's leader says these, one after the other, then nothing; None hangs up, and a call is made first."""

    def __init__(self, *said: Any) -> None:
        self.said, self.sent = list(said), []

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def receive(self, within_s: float) -> Any:
        if not self.said:
            return None
        one = self.said.pop(0)
        if one is None:
            raise StateError("gone")
        return one() if callable(one) else one


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    """A rerun that has one event and runs here."""
    made = RunPaths(tmp_path / RUN)
    made.root.mkdir()
    made.submission.write_text(json.dumps({"backend": "local", "job_id": "1", "hold": HOLD}))
    event_lines.append(made.events, events.event("warning", attempt=0, text="only once"))
    return made


def following(paths: RunPaths, *said: Any) -> tuple[_Following, Link]:
    """A command that follows the run."""
    plan = SimpleNamespace(spec=SimpleNamespace(needed_nodes=2, all_nodes=2))
    link = Link(*said)
    return _Following(SimpleNamespace(paths=paths, plan=plan), paths.beside(HOLD), link), link  # type: ignore[arg-type]


def ends(paths: RunPaths, state: str) -> None:
    """The leader of the rerun writes its outcome."""
    paths.outcome.write_text(json.dumps({"state": state, "reason": "All 9 steps are done.", "exit_code": 0}))


def test_the_end_is_known_before_its_file_is_seen(paths: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    """NFS may show a new file a minute late: what the hold's leader says is enough."""
    command, link = following(
        paths,
        RerunAccepted(run=RUN, restarted=["seed"]),
        RerunFinished(run=RUN, state="completed", reason="Done.", exit_code=0),
    )
    command.start()
    command.follow()
    said = capsys.readouterr().out

    assert link.sent == [StartRerun(run=RUN, nodes=2, most_nodes=2)]
    assert "torch is imported again, since seed has changed" in said
    assert said.count("only once") == 1
    assert f"{RUN} completed" in said


def test_a_lost_connection_is_told_and_the_files_go_on(paths: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is printed twice, and the end is found in the outcome."""
    command, _ = following(paths, RerunAccepted(run=RUN, restarted=[]), None)
    command.start()
    command._heed()
    ends(paths, "completed")
    command.follow()
    out, err = capsys.readouterr()

    assert f"the connection to {HOLD} was lost; launcher status {RUN} tells how it goes on" in err
    assert out.count("only once") == 1
    assert f"{RUN} completed" in out


def test_ctrl_c_is_a_message_and_without_a_connection_names_the_command(
    paths: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first one saves; the second does not wait for it."""
    command, link = following(paths, RerunAccepted(run=RUN, restarted=[]))
    command.start()
    for _ in range(2):
        command.interrupt()
        command._heed()
    assert link.sent[1:] == [StopRerun(run=RUN, save=True), StopRerun(run=RUN, save=False)]

    link.said.append(None)
    command._heed()
    command.interrupt()
    with pytest.raises(KeyboardInterrupt):
        command._heed()
    assert f"it is not stopped from here: launcher cancel {RUN} stops it" in capsys.readouterr().err


def test_a_run_that_ends_before_it_has_begun_is_told(paths: RunPaths) -> None:
    """Stopped while torch was imported."""
    command, _ = following(paths, RerunFinished(run=RUN, state="cancelled", reason="The user ran it.", exit_code=9))
    assert not command.start()
    with pytest.raises(RunCancelledError, match="was cancelled: The user ran it"):
        command.follow()


@pytest.mark.parametrize("asked", [False, True])
def test_an_interrupted_rerun_of_which_its_hold_knows_nothing_is_forgotten(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """Nobody would run it, and it was listed as running in its hold; one that the hold was asked to run stays."""

    def make(*given: Any) -> Any:
        one = SimpleNamespace(paths=paths, plan=SimpleNamespace(spec=SimpleNamespace(needed_nodes=2, all_nodes=2)))
        given[-1](one)
        if not asked:
            raise KeyboardInterrupt
        return one

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("XDG_STATE_HOME", str(paths.root.parent / "state"))
    monkeypatch.setattr(submit_rerun, "make_rerun", make)
    monkeypatch.setattr(submit_rerun, "hold_of", lambda run: run.beside(HOLD))
    monkeypatch.setattr("launcher.submission.sweeps.points.single", lambda _: paths)
    monkeypatch.setattr("launcher.submission.hold_link.hold_link", lambda _: contextlib.nullcontext(Link(interrupt)))
    monkeypatch.setattr(rerun, "job_or_own", lambda *_: None)
    monkeypatch.setattr(rerun, "_await_hold", lambda _: None)
    assert rerun.command.callback is not None
    with pytest.raises(KeyboardInterrupt):
        rerun.command.callback(RUN, (), False)

    assert paths.root.exists() == asked


def test_nothing_is_left_of_a_refused_run_and_a_lost_one_is_not_touched(paths: RunPaths) -> None:
    """A hold that refuses knows nothing of it; one that is gone may have begun it."""
    command, _ = following(paths, None)
    with pytest.raises(StateError, match=f"launcher status {RUN} says what became of {RUN}"):
        command.start()
    assert paths.root.exists()

    command, _ = following(paths, RerunRefused(run=RUN, why="other still runs"))
    with pytest.raises(StateError, match="other still runs"):
        command.start()
    assert not paths.root.exists()


def test_a_failure_has_its_exit_code(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the words of `launcher why` before it."""
    shown: list[str] = []
    monkeypatch.setattr("launcher.cli.why.print_why", shown.append)
    command, _ = following(paths, RerunAccepted(run=RUN, restarted=[]), lambda: ends(paths, "failed"))
    command.start()
    with pytest.raises(RunFailedError, match=f"{RUN} failed"):
        command.follow()
    assert shown == [str(paths.root)]


@pytest.mark.parametrize("run", ["", ".", "..", "../x", "/etc", "a/b"])
def test_a_run_beside_another_is_named_and_no_path(paths: RunPaths, run: str) -> None:
    """Whoever names it."""
    assert paths.beside(HOLD).root == paths.root.parent / HOLD
    with pytest.raises(ValueError, match="is no run's id"):
        paths.beside(run)
