"""What `submit --wait` and `run` show while a run goes on: a bar in a terminal, plain lines in a pipe."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from an_event import an_event

from launcher.cli import _follow_run
from launcher.cli import main as main_module
from launcher.errors import RunFailedError
from launcher.run import event_lines
from launcher.run.paths import RunPaths

FOLLOWS = """
import sys, time
from pathlib import Path
from launcher.cli._follow_run import report_end, follow_run
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome

paths, waits = RunPaths(Path(sys.argv[1])), []

def alive():
    waits.append(1)
    if len(waits) == 2:
        (paths.root / "written.json").rename(paths.outcome)
    return True

report_end(paths, follow_run(paths, alive))
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run in the middle of its training whose outcome comes while it is followed."""
    folder = tmp_path / "net-1121-0842-k7f"
    folder.mkdir()
    events = [
        {"t": 1.0, "type": "attempt_started", "attempt": 0, "job_id": "1", "host": "node1"},
        {
            "t": 2.0,
            "type": "worker_failed",
            "attempt": 0,
            "round": 0,
            "rank": 1,
            "host": "node1",
            "cause": {"signal": 9},
        },
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    picture = {"t": 2.0, "attempt": 0, "step": 25, "total_steps": 100, "rate": 4.0, "metrics": {"loss": 0.125}}
    (folder / "state.json").write_text(json.dumps(picture))
    outcome = {"state": "completed", "t": 9.0, "step": 100, "exit_code": 0, "metrics": {"test_accuracy": 0.8746}}
    (folder / "written.json").write_text(json.dumps(outcome))
    return folder


def _command(run: Path) -> tuple[list[str], dict[str, str]]:
    root = str(Path(main_module.__file__).parents[2])
    return [sys.executable, "-c", FOLLOWS, str(run)], {
        **os.environ,
        "PYTHONPATH": root,
        "TERM": "xterm",
        "COLUMNS": "100",
    }


def test_a_terminal_shows_a_bar_and_then_the_result(run: Path) -> None:
    """Step, total, speed and loss stand in the bar; events pass above it; the end is the metrics and where the run lies."""
    command, environ = _command(run)
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, env=environ, stdout=theirs, stderr=theirs, stdin=theirs) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                more = os.read(ours, 65536)
            except OSError:  # EIO: the other end is closed
                break
            if not more:
                break
            shown += more
    os.close(ours)
    text = shown.decode()

    assert process.returncode == 0, text
    assert "25/100" in text
    assert "4.0 steps/s  loss 0.125" in text
    assert "rank 1" in text
    assert f"{run.name} completed: test_accuracy 0.8746" in text
    assert str(run) in text.replace("\r\n", "")


def test_a_pipe_gets_lines_and_no_bar(run: Path) -> None:
    """Nothing that only a terminal understands goes into a file."""
    command, environ = _command(run)
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=True)

    assert "25/100" not in done.stdout
    assert "\x1b" not in done.stdout
    assert f"{run.name} completed: test_accuracy 0.8746" in done.stdout


def test_a_run_whose_folder_was_deleted_is_followed_to_its_end(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes are gone and no file can say more: the sentence is about the folder."""
    monkeypatch.setattr(_follow_run, "_LAST_WORDS_S", 0.0)
    shutil.rmtree(run)

    with pytest.raises(RunFailedError, match=f"{run.name} has ended: its folder {run} was deleted or moved"):
        _follow_run.follow_run(RunPaths(run), lambda: False)


def test_a_run_whose_outcome_is_not_seen_yet_ended_as_its_history_says(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """NFS shows a new file late: a completed run was called failed. Its metrics are the last picture's."""
    monkeypatch.setattr(_follow_run, "_LAST_WORDS_S", 0.0)
    paths = RunPaths(run)
    event_lines.append(paths.events, an_event("ended", attempt=0, state="completed", reason="All is done.", step=100))
    _follow_run.report_end(paths, _follow_run.follow_run(paths, lambda: False))

    assert f"{run.name} completed: loss 0.125" in capsys.readouterr().out


def test_a_point_whose_outcome_is_not_seen_yet_has_completed(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SLURM does not know its job any more, and its history says how it ended: it is not lost."""
    monkeypatch.setattr(_follow_run, "_PERIOD_S", 0.0)
    monkeypatch.setattr(_follow_run, "ASK_EVERY_S", 0.0)
    paths = RunPaths(run)
    paths.submission.write_text(
        json.dumps({"backend": "local", "host": os.uname().nodename, "pid": 2**30, "pid_started": 1})
    )
    event_lines.append(paths.events, an_event("ended", attempt=0, state="completed", reason="All is done.", step=100))
    _follow_run.follow_points("net", [paths])

    assert "net completed: 1 points" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("states", "said"),
    [
        (["completed", "cancelled"], "1 of 2 points did not complete; launcher resubmit POINT continues one that was cancelled"),
        (["failed", "cancelled"], "2 of 2 points did not complete; launcher resubmit --failed net continues those that failed"),
    ],
    ids=["cancelled", "failed"],
)  # fmt: skip
def test_the_command_that_continues_points_is_one_that_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: list[str], said: str
) -> None:
    """`resubmit --failed` leaves cancelled points alone."""
    monkeypatch.setattr(_follow_run, "_PERIOD_S", 0.0)
    points = [RunPaths(tmp_path / f"net-{number}") for number in range(len(states))]
    for paths, state in zip(points, states, strict=True):
        paths.root.mkdir()
        paths.submission.write_text(json.dumps({"backend": "local"}))
        paths.outcome.write_text(json.dumps({"state": state}))
    with pytest.raises(RunFailedError, match=said):
        _follow_run.follow_points("net", points)
