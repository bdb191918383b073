"""Events: what is written is read again, and no reader falls over what another version, or a bad disk, has made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_values import JSON, records, relaxed

from launcher.node.allocation.exclusions import excluded_before
from launcher.node.allocation.teardown import decide_end
from launcher.node.leader.past import first_of_submission, waiting_since
from launcher.node.policy.budgets import Budgets
from launcher.node.sidecars.notify import owed
from launcher.report.diagnosis.why import explain
from launcher.report.model.history import as_time, read_history
from launcher.report.model.host_records import HostTrace, gather
from launcher.report.model.ledger import advise, ledger
from launcher.report.model.summary import summarise_history
from launcher.report.text.words import level, words
from launcher.run import event_lines, events
from launcher.run.events import Event, StoreLost, UnknownEvent, parse_event
from launcher.run.paths import RunPaths
from launcher.run.spec import RestartSpec

KINDS = list(Event.kinds.values())
KEYS = sorted(
    {name for kind in KINDS for name in kind._frozen_fields} | {"cause", "ranks", "frames", "hosts", "checks"}
)
LINES = st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), JSON, max_size=9).flatmap(
    lambda values: st.sampled_from([*Event.kinds, "unheard"]).map(lambda kind: {"t": 1.0, **values, "type": kind})
)


@pytest.mark.hypothesis
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_event_comes_back_as_it_was_written(kind: Any) -> None:
    """As a line and read again, each event is equal to the one that was written, and nothing of it counts as a problem."""

    @relaxed
    @given(records(kind).filter(lambda event: "Infinity" not in json.dumps(event.to_wire())))
    def check(event: Event) -> None:
        """One event."""
        problems: list[str] = []
        assert parse_event(json.loads(json.dumps(event.to_wire())), problems) == event
        assert problems == []

    check()


def test_writing_is_strict() -> None:
    """A type or a key that no event has, and a key that is missing, are a fault of ours, said at once."""
    for type_, values in (("zork", {}), ("agreed", {"step": 1, "stop": 2}), ("agreed", {})):
        with pytest.raises(TypeError):
            events.event(type_, attempt=0, **values)  # type: ignore[arg-type]


def test_a_key_of_a_wrong_type_is_none_and_counted_and_the_event_stays(tmp_path: Path) -> None:
    """What the rest of it says is used; keys and types of other versions are kept as they were."""
    problems: list[str] = []
    saved = parse_event({"type": "saved", "t": 5.0, "step": "7", "path": "p", "reason": "end", "new": 1}, problems)
    assert isinstance(saved, events.Saved)
    assert (saved.step, saved.path, saved.raw["new"], problems) == (None, "p", 1, ["saved.step"])

    later = parse_event({"type": "later", "t": 6.0, "what": [1]}, problems)
    assert isinstance(later, UnknownEvent)
    assert (later.type, later.t, later.raw["what"]) == ("later", 6.0, [1])
    event_lines.append(tmp_path / "events.jsonl", later)
    assert event_lines.read(tmp_path / "events.jsonl") == [later]


def test_numbers_that_no_run_can_have_are_none() -> None:
    """Infinities, and whole numbers that a counter would take centuries for."""
    problems: list[str] = []
    lost = parse_event({"type": "stopped", "t": 1.0, "step": 10**30, "lost_steps": 3}, problems)
    assert (lost.step, lost.lost_steps, problems) == (None, 3, ["stopped.step"])  # type: ignore[attr-defined]


@relaxed
@given(st.lists(LINES, max_size=12))
def test_garbage_breaks_no_reader_on_the_nodes(lines: list[dict[str, Any]]) -> None:
    """Budgets, exclusions, what is owed, and the decision on a dead leader's run come out of whatever the history holds."""
    history = [parse_event(line, []) for line in lines]
    budgets = Budgets().feed_all(history)
    assert budgets.spent_with_current_s(1e9) >= 0
    assert set(excluded_before(history, 1e9).values()) <= {True, False}
    assert owed(history) is None or isinstance(owed(history), str)
    assert first_of_submission(history) in (True, False)
    assert waiting_since(history) is None or isinstance(waiting_since(history), (int, float))
    decision = decide_end(RestartSpec(), history, life=("5", 0), meaning="running", now=1e9)
    assert decision.action in ("nothing", "requeue", "fail", "cancel")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    """A run's folder."""
    return RunPaths(tmp_path_factory.mktemp("garbled-1124-0000-abc"))


@pytest.mark.hypothesis
@pytest.mark.usefixtures("folder")
def test_garbage_breaks_no_reader_of_the_report(folder: RunPaths) -> None:
    """State, ledger, advice, reason, host records and each line in words come out of whatever events.jsonl holds."""

    @relaxed
    @given(st.lists(LINES, max_size=12))
    def check(lines: list[dict[str, Any]]) -> None:
        """One history."""
        folder.events.write_text("".join(json.dumps(line) + "\n" for line in lines))
        h = read_history(folder)
        assert len(h.events) == len(lines) or not any(as_time(line["t"]) is not None for line in lines)
        summary = summarise_history(h, None, 2000.0)
        book = ledger(h, 2000.0)
        assert all(seconds >= 0 for seconds in book.seconds.values())
        assert advise(h, book).failures >= 0
        assert explain(h, summary, 2000.0).sentence.isprintable()
        assert all(record.troubles >= 0 for record in gather([HostTrace("r", h.events, [])]))
        for event in h.events:
            assert words(event).isprintable()
            assert level(event) in ("bad", "warning", "good", "plain")

    check()


def test_a_type_that_is_no_text_is_passed_over(tmp_path: Path) -> None:
    """A damaged line may hold a list there: the others are read, also where only some types are wanted."""
    path = tmp_path / "events.jsonl"
    path.write_text('{"type": ["saved"], "t": 1}\n{"type": "store_lost", "t": 2, "attempt": 0, "host": "n1"}\n')
    assert [e.type for e in event_lines.read(path)] == ["store_lost"]
    assert [e.type for e in event_lines.read(path, StoreLost)] == ["store_lost"]
