"""`launcher logs -f`: nothing that a rank or an agent wrote is lost or mixed up, however the run went on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.cli import logs
from launcher.cli.main import main
from launcher.run.paths import RunPaths
from launcher.run.state import write_outcome
from launcher.submission import liveness

Step = Callable[[], object]


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """The only run, which runs until it has an outcome."""
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(liveness, "locate", lambda _paths: SimpleNamespace(alive=lambda: True))
    found = RunPaths(tmp_path / "resnet50-1121-0842-k7f")
    found.submitit.mkdir(parents=True)
    found.spec.write_text("{}")
    return found


def adds(path: Path, text: str) -> Step:
    """What a writer does next."""

    def step() -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as f:
            f.write(text)

    return step


def follow(paths: RunPaths, monkeypatch: pytest.MonkeyPatch, *looks: list[Step], words: tuple[str, ...] = ()) -> None:
    """Follow its logs while the steps of each list happen between two looks; then the run ends."""
    waiting = [*looks, [lambda: write_outcome(paths.outcome, {"state": "completed"})]]

    def happen(_seconds: float) -> None:
        for step in waiting.pop(0):
            step()

    monkeypatch.setattr(logs, "time", SimpleNamespace(sleep=happen))
    assert main(["logs", "k7f", "-f", *words]) == 0


def test_the_last_lines_of_a_round_come_before_the_next_round(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A traceback that was written just before the restart is shown, and so is a whole round between two looks."""
    old, first, second, third = (paths.rank_log(0, n, 0) for n in range(4))
    adds(old, "of long ago\n")()
    adds(first, "one\n")()
    steps = [adds(first, "Traceback\n"), adds(second, "skipped\n"), adds(third, "three\n")]
    follow(paths, monkeypatch, steps, [adds(third, "four\n")])

    seen = capsys.readouterr()
    assert seen.out == "one\nTraceback\nskipped\nthree\nfour\n"
    assert [line.split("/")[2] for line in seen.err.splitlines()] == ["round-2", "round-3"]


def test_lines_of_several_agents_are_told_apart(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each switch has a header, and half a line waits for its other half below its own."""
    a, b = (paths.submitit / f"7_{task}_log.out" for task in (0, 1))
    adds(a, "a1\n")()
    steps = [[adds(a, "a2 "), adds(b, "b1\nb2 ")], [adds(a, "end\n"), adds(b, "end\n")], [adds(b, "b3")]]
    follow(paths, monkeypatch, *steps, words=("--agents",))

    told = [f"==> {a.name} <==", "a1", f"==> {b.name} <==", "b1", f"==> {a.name} <==", "a2 end", f"==> {b.name} <=="]
    assert capsys.readouterr().out.splitlines() == [*told, "b2 end", "b3"]


def test_objects_name_the_round_of_each_line(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In JSON, too, the end of a round comes before the next."""
    first, second = (paths.rank_log(0, n, 0) for n in range(2))
    adds(first, "one\n")()
    follow(paths, monkeypatch, [adds(first, "last\n"), adds(second, "two\n")], words=("--json",))

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["round"], line["text"]) for line in lines] == [(0, "one"), (0, "last"), (1, "two")]


def test_a_round_that_a_rank_has_no_log_of_is_an_error(paths: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    """It says which rounds there are; the agents' logs are no answer to that question."""
    for n in range(2):
        adds(paths.rank_log(0, n, 0), "x\n")()
    adds(paths.submitit / "7_0_log.out", "agent\n")()

    assert main(["logs", "k7f", "--round", "9"]) == 16
    seen = capsys.readouterr()
    assert "rank 0 of resnet50-1121-0842-k7f has no log of round 9" in seen.err
    assert "it has logs of round 0 of attempt 0, round 1 of attempt 0" in seen.err
    assert seen.out == ""
