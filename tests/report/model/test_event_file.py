"""A history that is read again and again: as a fresh reader would read it, for the price of what is new."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from run_story import Story, training

from launcher.report.model import history
from launcher.report.model.hearing import Hearing
from launcher.report.model.history import EventFile
from launcher.run.files import Damage


def both(path: Path, again: EventFile) -> tuple[tuple[object, list[Damage]], tuple[object, list[Damage]]]:
    """What the reader of before finds now, and what a new one does: events and damage."""
    mine: list[Damage] = []
    fresh: list[Damage] = []
    return (again.read(mine), mine), (EventFile(path).read(fresh), fresh)


def a_line(choose: random.Random, t: float) -> bytes:
    """An event, mostly of now; or what a torn disk, another version or another clock has left."""
    attempt = choose.randrange(3)
    event = {"t": t + choose.choice([0, 0, 0, -5]), "type": "warning", "attempt": attempt, "text": "x"}
    strange = [b"{", b"[1]", b"", b'{"type": "saved"}', b'{"t": "x", "type": "saved"}', b'{"t": 1.0}']
    return json.dumps(event).encode() if choose.random() < 0.8 else choose.choice(strange)


@examples(150)
@given(seed=st.integers(0, 2**32))
def test_reading_on_finds_what_reading_anew_finds(seed: int) -> None:
    """Whatever is appended, in whatever parts, by clocks that go back; also when the file is cut or replaced between."""
    choose, t = random.Random(seed), 1_790_000_000.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        again, half = EventFile(path), b""
        for _ in range(choose.randrange(1, 12)):
            if choose.random() < 0.1 and path.exists():
                if choose.random() < 0.5:
                    path.unlink()
                else:
                    path.write_bytes(b"")
                half = b""
            whole = b"".join(a_line(choose, t := t + choose.random()) + b"\n" for _ in range(choose.randrange(4)))
            line = a_line(choose, t)
            cut = choose.choice([0, 0, choose.randrange(len(line) + 1)])
            with path.open("ab") as f:
                f.write(half + whole + line[:cut])
            half = line[cut:] + b"\n" if cut else b""
            mine, fresh = both(path, again)
            assert mine == fresh


def test_a_file_of_the_same_length_is_seen_to_be_another(tmp_path: Path) -> None:
    """Written anew in its place, with as many bytes: by its last line."""
    story = Story(tmp_path).submitted()
    again = EventFile(story.paths.events)
    again.read()
    text = story.paths.events.read_text()
    story.paths.events.write_text(text.replace('"nodes": 2', '"nodes": 3'))

    assert [e.raw["nodes"] for e in again.read()] == [3]


def test_only_new_events_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch that redraws every second does not read a week's events each time."""
    story = training(tmp_path)
    hearing, parsed = Hearing(), []
    real = history.parse_event
    monkeypatch.setattr(
        history, "parse_event", lambda line, problems: parsed.append(line["type"]) or real(line, problems)
    )
    count = len(hearing.read(story.paths).events)
    assert len(parsed) == count
    parsed.clear()
    story.event("saved", step=10, path="x")

    assert len(hearing.read(story.paths).events) == count + 1
    assert parsed == ["saved"]
