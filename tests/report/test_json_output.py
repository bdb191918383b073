"""``--json`` of report and clean: the same as what people are shown, for programs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import click
import pytest
from in_process import launcher
from run_story import Story

from launcher.cli.logs import Objects
from launcher.cli.main import cli


def parsed(*words: str) -> Any:
    """Strict JSON: no NaN, no Infinity."""
    return json.loads(launcher(*words, "--json").stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_a_reports_figures(home: Path, rich: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """All of status, the cause of why, and what the page draws; one line; no page is written."""
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(rich["failed"].parent))
    value, text = parsed("report", "m3x"), launcher("report", "m3x", "--json").stdout
    status, why = parsed("status", "m3x"), parsed("why", "m3x")
    loss = next(c for c in value["curves"] if c["name"] == "loss")

    assert text.count("\n") == 1
    assert {key: value[key] for key in status} == status
    assert value["why"] == why
    assert [i["cause"] for i in value["ledger"]["interruptions"]].count("crash") >= 2
    assert (loss["x"][0], len(loss["x"])) == (10, len(loss["y"]))
    assert [one["name"] for one in value["usage"]["gpu"]] == ["highest", "mean", "lowest"]
    assert max(value["spread"], key=lambda r: r["over"])["rank"] == 5
    assert value["environment"]["packages"]["timm"] == "1.0.20"
    assert (value["previous"], "-  lr: 0.1" in value["changed"], "+  lr: 0.4" in value["changed"]) == (
        rich["completed"].name,
        True,
        True,
    )
    assert list(home.parent.glob("*.html")) == []


def test_several_reports_are_a_list(home: Path, rich: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """One run a line, compared with the first; with -o it is a private file."""
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(rich["failed"].parent))
    values = parsed("report", "k7f", "pq2")
    launcher("report", "k7f", "pq2", "--json", "-o", "both.json")

    assert [v["run"] for v in values] == [rich["running"].name, rich["completed"].name]
    assert [(v["previous"], "-  lr: 0.2" in v["changed"]) for v in values] == [
        (None, False),
        (rich["running"].name, True),
    ]
    assert [v["run"] for v in json.loads(Path("both.json").read_text())] == [v["run"] for v in values]
    assert Path("both.json").stat().st_mode & 0o777 == 0o600


def test_a_run_without_anything_has_figures_too(home: Path) -> None:
    """Empty curves, no cause of its end, nothing to compare it with."""
    Story(home).submitted()
    value = parsed("report")

    assert (value["state"], value["curves"], value["usage"], value["previous"], value["changed"]) == (
        "pending", [], {}, None, []
    )  # fmt: skip


def test_clean_lists_and_removes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing goes without --yes, nor without a choice of runs, and nobody is asked; afterwards it says what has gone."""
    for tail, age in (("1121-0842-old", 3), ("1121-0900-new", 1)):
        story = Story(home, "net", tail).outcome("completed", "All steps are done.", exit_code=0)
        os.utime(story.paths.outcome, (time.time() - 86_400 * age,) * 2)
    Story(home, "net", "1121-1000-now").submitted()
    listed, offered = parsed("clean"), parsed("clean", "--older-than", "2")

    assert {v["run"]: v["removed"] for v in listed} == {"net-1121-0842-old": False, "net-1121-0900-new": False}
    assert [v for v in listed if v["run"].endswith("old")] == offered
    assert offered[0]["ended"] == pytest.approx(time.time() - 3 * 86_400, abs=60)
    assert offered[0]["bytes"] > 0
    assert parsed("clean", "--yes") == listed
    gone = parsed("clean", "--older-than", "2", "--yes")
    assert gone == [{**offered[0], "removed": True}]
    assert sorted(p.name[-3:] for p in home.iterdir()) == ["new", "now"]
    assert not Path(gone[0]["dir"]).exists()
    assert parsed("clean", "--older-than", "2", "--yes") == []


def two_rounds(home: Path) -> Story:
    """A run whose rank 3 wrote a log in each of two rounds, the second on another host."""
    story = Story(home).submitted().begins().round_starts()
    table = [{"rank": 3, "host": "spare1", "node": 1, "local_rank": 1}]
    story.event("worker_failed", rank=3, host="node2", step=7, cause={}).round_starts()
    with story.paths.events.open("a") as f:
        f.write(json.dumps({"t": story.t, "type": "round_started", "attempt": 0, "round": 2, "ranks": table}) + "\n")
    for round_, text in ((0, b"first\n"), (2, b"caf\xe9\n\n10%\r20%\nno end")):
        log = story.paths.rank_log(0, round_, 3)
        log.parent.mkdir(parents=True)
        log.write_bytes(text)
    return story


def test_a_logs_lines_are_objects(home: Path) -> None:
    """Who wrote it, where and when; any bytes, empty lines, progress bars, and a last line without an end."""
    run = two_rounds(home).paths.root.name
    lines = [json.loads(line) for line in launcher("logs", "k7f", "--rank", "3", "--json").stdout.splitlines()]
    head = {
        "run": run,
        "file": "logs/attempt-0/round-2/rank-00003.log",
        "attempt": 0,
        "round": 2,
        "rank": 3,
        "host": "spare1",
    }

    assert lines == [{**head, "text": text} for text in ("caf\ufffd", "", "10%\r20%", "no end")]
    last = launcher("logs", "k7f", "--rank", "3", "--round", "0", "-n", "1", "--json").stdout
    assert {k: json.loads(last)[k] for k in ("round", "host", "text")} == {"round": 0, "host": "node2", "text": "first"}


def test_agents_logs_are_objects(home: Path) -> None:
    """Each line names its file; what agents said belongs to no rank."""
    paths = two_rounds(home).paths
    paths.submitit.mkdir()
    for task in (0, 1):
        (paths.submitit / f"42_{task}_log.out").write_text(f"agent {task}\n")
    lines = [json.loads(line) for line in launcher("logs", "k7f", "--agents", "--json").stdout.splitlines()]

    assert {(one["file"].partition("/")[2], one["text"], one["rank"], one["host"]) for one in lines} == {
        ("42_0_log.out", "agent 0", None, None), ("42_1_log.out", "agent 1", None, None),
    }  # fmt: skip


def test_followed_lines_are_printed_once_they_are_whole(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half a line waits for its other half, also between two other files' lines; what never ends comes at the close."""
    paths = two_rounds(home).paths
    out = Objects(paths)
    old, new = (paths.rank_log(0, round_, 3) for round_ in (0, 2))
    steps = [(old, b"loss 0", []), (new, b"a\nb", ["a"]), (old, b".5\nend", ["loss 0.5"]), (new, b"\n", ["b"])]
    for path, block, told in steps:
        out.write(path, block)
        assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == told
    out.close()

    assert json.loads(capsys.readouterr().out)["text"] == "end"


def test_watching_as_json_is_an_event_a_line(home: Path) -> None:
    """Every event with its words, as it is in the history; the last line is the run's state."""
    story = two_rounds(home).outcome("failed", "Rank 3 raised.", step=7, exit_code=8)
    lines = [json.loads(line) for line in launcher("watch", "k7f", "--json").stdout.splitlines()]
    raw = [json.loads(line) for line in story.paths.events.read_text().splitlines()]

    assert [{k: v for k, v in line.items() if k != "words"} for line in lines[:-1]] == raw
    assert next(line["words"] for line in lines if line["type"] == "worker_failed").startswith("rank 3 on node2 failed")
    last = {"t": story.t, "type": "state", "run": story.paths.id, "state": "failed", "reason": "Rank 3 raised."}
    assert lines[-1] == last
    assert parsed("watch") == parsed("ls")


def test_watching_a_sweep_as_json(home: Path) -> None:
    """A line for each point and state, reasons in full."""
    sweep = home / "lr-1121-1000-swp"
    Story(sweep, "lr-a", "1121-1000-swp0000").submitted().outcome("completed", "All steps are done.", exit_code=0)
    Story(sweep, "lr-b", "1121-1000-swp0001").submitted().outcome("failed", "x" * 300, exit_code=8)
    points = [{"run": p.name, "overrides": ["params.lr=1"]} for p in sorted(sweep.iterdir())]
    (sweep / "sweep.json").write_text(json.dumps({"points": points}))
    lines = [json.loads(line) for line in launcher("watch", "swp", "--json").stdout.splitlines()]

    assert {(one["type"], one["run"][:4], one["state"], len(one["reason"])) for one in lines} == {
        ("state", "lr-a", "completed", len("All steps are done.")), ("state", "lr-b", "failed", 300),
    }  # fmt: skip


READS = {"ls", "status", "watch", "logs", "why", "report", "plan", "dry-run", "doctor", "nodes", "clean"}


def test_every_verb_that_reads_has_json() -> None:
    """The other verbs change something, or print what is not ours: a shell's completion, a JSON Schema."""
    context = click.Context(cli)
    commands = {verb: cli.get_command(context, verb) for verb in cli.list_commands(context)}
    have = {verb for verb, c in commands.items() if c is not None and any("--json" in p.opts for p in c.params)}

    assert have >= READS
    assert set(commands) - have <= {
        *("init", "run", "submit", "resubmit", "cancel", "shell", "schema", "completion", "hold", "rerun")
    }
