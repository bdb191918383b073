"""``--json`` of report and clean: the same as what people are shown, for programs."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich_run import make
from run_story import Story

from launcher.cli.main import cli

NOW = 1_790_050_000.0


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three small runs of one name: completed, failed, running."""
    return make(tmp_path_factory.mktemp("runs"), now=NOW, scale=0.1)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of runs; no SLURM answers."""
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def printed(*words: str) -> str:
    """What the command prints; it must succeed."""
    result = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def parsed(*words: str) -> Any:
    """Strict JSON: no NaN, no Infinity."""
    return json.loads(printed(*words, "--json"), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_a_reports_figures(home: Path, rich: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """All of status, the cause of why, and what the page draws; one line; no page is written."""
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(rich["failed"].parent))
    value, text = parsed("report", "m3x"), printed("report", "m3x", "--json")
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
    printed("report", "k7f", "pq2", "--json", "-o", "both.json")

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
