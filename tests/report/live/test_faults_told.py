"""What of a run's files could not be read is survived, and told: by status, why, watch and the page."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from in_process import launcher
from run_story import Story, training

from launcher.report.live.feed import LiveFeed
from launcher.report.live.view import View
from launcher.run.files import append_line, read_lines

OLDER = Path(__file__).parents[1] / "older" / "digits-1122-1758-ys9"


def test_a_run_of_an_older_launcher_is_read_and_said_to_be_one(home: Path) -> None:
    """Unknown and missing fields: every verb still knows how it ended and why, and those of one run say that it is older."""
    shutil.copytree(OLDER, home / OLDER.name)
    said = "spec.json: written by another launcher (version 0, this one writes 1)"
    value = json.loads(launcher("status", "ys9", "--json").output)
    why = json.loads(launcher("why", "ys9", "--json").output)
    launcher("report", "ys9", "-o", "page.html")
    launcher("report", "ys9", "ys9", "-o", "both.html")
    view = View(LiveFeed(), stop=lambda paths: "")
    view.render(100, 30, value["ended"] + 1)
    view.press("enter")

    assert (value["state"], value["step"], value["world_size"], value["file_faults"]) == ("failed", 21, 2, [said])
    assert f"  files    {said}" in launcher("status", "ys9").output.splitlines()
    assert (why["kind"], why["rank"], why["step"]) == ("exception", 0, 30)
    assert why["sentence"].startswith("Rank 0 (node1/0) raised ValueError at step 30: bad label 11.")
    assert why["evidence"]["files"] == [said]
    assert f"  files    {said}" in launcher("why", "ys9").output.splitlines()
    for page in ("page.html", "both.html"):
        assert said in Path(page).read_text(), page
    assert any("written by another launcher" in row.plain for row in view.render(100, 30, value["ended"] + 1))
    assert "failed" in launcher("ls").output
    assert "bad label 11" in launcher("logs", "ys9").output
    assert "node1" in launcher("nodes").output


def test_half_written_lines_are_counted(home: Path) -> None:
    """Two lines cut, one foreign, one without a time: four, by status and page; other files are told in their own words."""
    story = training(home)
    lines = story.paths.events.read_text().splitlines()
    lines[2:2] = [lines[1][:20], "[1]", '{"type": "saved"}', lines[1][:-1]]
    story.paths.events.write_text("\n".join(lines) + "\n")
    story.paths.metrics.write_text('{"step": 1, "metrics": {"loss": 1}}\n{"step":\n{"step"')
    story.paths.state.write_text('{"t": 5')
    story.paths.submission.write_text("[]")
    (story.paths.root / "environment.json").mkdir()
    value = json.loads(launcher("status", "k7f", "--json").output)
    launcher("report", "k7f", "-o", "page.html")
    told = [
        "state.json: could not be read (it is half-written or not JSON)",
        "events.jsonl: 4 lines could not be read",
        "submission.json: could not be read (it is not a JSON object)",
    ]

    assert value["file_faults"] == told
    assert f"  files    {'; '.join(told)}" in launcher("status", "k7f").output.splitlines()
    more = ["metrics.jsonl: 1 line could not be read", "environment.json: could not be read (Is a directory)"]
    assert (
        f"Some files could not be read, and this page is without them: {'; '.join(told + more)}."
        in Path("page.html").read_text()
    )


def test_a_line_being_written_is_no_fault(home: Path) -> None:
    """The torn last line of a run that goes on is worth no word; of one that has ended it is a line lost."""
    story = training(home)
    with story.paths.events.open("a") as f:
        f.write('{"t": 1790000100.0, "type": "sav')
    assert json.loads(launcher("status", "k7f", "--json").output)["file_faults"] == []

    story.paths.outcome.write_text(
        json.dumps({"t": story.t + 9, "state": "completed", "reason": "All steps are done."})
    )
    assert json.loads(launcher("status", "k7f", "--json").output)["file_faults"] == [
        "events.jsonl: 1 line could not be read"
    ]


def test_what_must_be_there_is_missed(home: Path) -> None:
    """The spec and the history are written before a run is submitted; a picture or an outcome that is not there yet is no fault."""
    story = Story(home).submitted()
    assert json.loads(launcher("status", "k7f", "--json").output)["file_faults"] == []

    story.paths.spec.unlink()
    story.paths.events.unlink()
    assert json.loads(launcher("status", "k7f", "--json").output)["file_faults"] == [
        "events.jsonl: missing or empty",
        "spec.json: missing or empty",
    ]


def test_a_half_line_does_not_take_the_next_one_along(tmp_path: Path) -> None:
    """A writer died in the middle of a line; the next writer's first line stands on its own."""
    path = tmp_path / "events.jsonl"
    append_line(path, {"type": "a"})
    with path.open("a") as f:
        f.write('{"type": "hal')
    append_line(path, {"type": "b"})
    append_line(path, {"type": "c"})

    assert [e["type"] for e in read_lines(path)] == ["a", "b", "c"]
    assert path.read_bytes().count(b"\n") == 4


def test_a_disk_that_takes_half_a_line_has_refused_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """write(2) may take a part without an error: that is one, and the same line can be written again in whole."""
    path = tmp_path / "events.jsonl"
    append_line(path, {"type": "a"})
    real = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda fd, data: real(fd, data[:5]))
        with pytest.raises(OSError, match="No space left"):
            append_line(path, {"type": "b"})
    append_line(path, {"type": "b"})

    assert [e["type"] for e in read_lines(path)] == ["a", "b"]
