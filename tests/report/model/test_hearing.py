"""Reading runs whose files were written by other clocks than the reader's."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from run_story import T0, Story, training

from launcher.report.diagnosis.why import explain
from launcher.report.live.feed import LiveFeed
from launcher.report.model import hearing
from launcher.report.model.hearing import read_histories, run_now
from launcher.report.model.history import read_history
from launcher.report.model.ledger import ledger
from launcher.report.model.runs import summarise_all
from launcher.report.model.summary import RunSummary, summarise_history
from launcher.report.model.troubles import troubles
from launcher.report.text.status import lines
from launcher.run import clock
from launcher.slurm.jobs import JobView

HOUR = 3600.0
WRONG = pytest.mark.parametrize("wrong", [HOUR, -HOUR], ids=["reader ahead", "reader behind"])


RUNNING = JobView(job_id="482913", state="RUNNING")
"""SLURM's view."""


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Have something happen while a reader waits, which takes no time here."""
    passed = [0.0]
    does: list[Callable[[], object]] = []

    def sleep(seconds: float) -> None:
        passed[0] += seconds
        while does:
            does.pop()()

    monkeypatch.setattr(hearing.time, "sleep", sleep)
    monkeypatch.setattr(hearing.time, "monotonic", lambda: passed[0])
    return does.append


def summary(story: Story, now: float) -> RunSummary:
    """As a verb makes it that is started now."""
    return summarise_all(read_histories([story.paths], now), now, lambda ids: dict.fromkeys(ids, RUNNING))[0]


@WRONG
def test_a_leader_that_writes_is_not_silent(tmp_path: Path, later, wrong: float) -> None:
    """Its last word is an hour old, or to come, as the reader's clock shows; but its picture changes."""
    story = training(tmp_path)
    later(lambda: story.wait(1).state(step=121, saved_t=story.t - 5))
    (h,) = read_histories([story.paths], story.t + wrong)
    s = summarise_history(h, None, story.t + wrong)

    assert (s.state, s.silent, s.step) == ("running", False, 121)
    assert run_now(h, story.t + wrong) == story.t


@WRONG
def test_a_leader_that_does_not_write_is_silent(tmp_path: Path, later, wrong: float) -> None:
    """Nothing changes while the reader looks: that is told, and no time that nobody knows."""
    story = training(tmp_path)
    s = summary(story, story.t + wrong)
    (h,) = read_histories([story.paths], story.t + wrong)
    (told,) = [trouble.sentence for trouble in troubles(h, s, run_now(h, story.t + wrong))]

    assert (s.state, s.silent) == ("running", True)
    assert ("nothing recently" in told) == (wrong < 0)


def test_a_silent_run_is_looked_at_once_by_a_reader_with_the_same_clock(tmp_path: Path, monkeypatch) -> None:
    """Fresh, waiting in a queue, ended, or silent for days: nobody has to wait for a second look."""
    monkeypatch.setattr(hearing.time, "sleep", lambda seconds: pytest.fail("it waits"))
    story = training(tmp_path)

    read_histories([story.paths], story.t + 5)
    read_histories([story.paths], story.t + 3 * 86400)
    read_histories([Story(tmp_path, "queued").submitted().paths], T0 + HOUR)
    read_histories([training(tmp_path, name="over").outcome("completed").paths], T0 + HOUR)


@WRONG
def test_on_the_leaders_own_host_no_clock_is_asked(tmp_path: Path, monkeypatch, wrong: float) -> None:
    """The picture notes the seconds since the host booted: ten seconds ago is ten seconds ago."""
    monkeypatch.setattr(hearing.time, "sleep", lambda seconds: pytest.fail("it waits"))
    monkeypatch.setattr(clock, "up_s", lambda: 5000.0)
    story = training(tmp_path)
    here = {"boot": clock.boot(), "up_s": 4990.0}
    story.state(saved_t=story.t - 5, saved_step=100, **here)
    (h,) = read_histories([story.paths], story.t + wrong)
    s = summarise_history(h, None, story.t + wrong)

    assert not s.silent
    assert run_now(h, story.t + wrong) == story.t + 10
    told = "\n".join(lines(s, run_now(h, story.t + wrong), wrong=[]))
    assert "step 100, 15 s ago" in told


def test_an_outcome_by_a_clock_that_is_behind_is_the_end(tmp_path: Path) -> None:
    """The batch script of another clock, or a user's host, wrote it an hour "before" the attempt began."""
    story = training(tmp_path)
    story.t -= HOUR
    story.outcome("cancelled", reason="x", attempt=None)

    assert summarise_history(story.history(), None, story.t + 5).state == "cancelled"
    story.paths.outcome.unlink()
    assert summarise_history(read_history(story.paths), None, story.t + 5).state == "cancelled"


def test_a_second_attempt_by_a_clock_that_is_behind_comes_second(tmp_path: Path) -> None:
    """Events are told in the order of the file; nothing takes less than no time, and what an attempt took stays."""
    story = training(tmp_path).event("decision", evidence="preempted", action="requeue", reason="x.")
    story.event("attempt_ended", allocation_s=70.0).event("requeued", how="requeue", job_id="482913", seconds=1.0)
    story.t -= HOUR
    story.begins().wait(5).round_starts(resume_step=120).wait(5).event("first_step", step=121, seconds=5.0).wait(60)
    story.state(step=240, allocation_t=story.t - 70).wait(1).outcome("completed", step=240, attempt=1)
    h = story.history()
    s = summarise_history(h, None, story.t)
    book = ledger(h, s.ended or story.t)

    times = [e.t for e in h.events]
    assert times == sorted(times)
    assert book.seconds["useful"] == pytest.approx(121, abs=2)
    assert 140 <= book.total_s <= 152  # the seconds in the queue are between two clocks
    assert (s.ended or 0) - (s.started or 0) == pytest.approx(141, abs=5)


def test_what_came_first_is_what_stands_first(tmp_path: Path) -> None:
    """The failure after the decision is the newest, whatever the times are; so is the step that came after one."""
    story = training(tmp_path)
    cause = {"kind": "exception", "exception": "ValueError", "message": "bad", "text": "x", "frames": []}
    story.event("worker_failed", rank=1, host="node1", step=120, cause=cause)
    story.event("decision", evidence="worker_failed", action="new_round", reason="x; y.")
    story.t -= HOUR
    story.round_starts(resume_step=100).wait(3).event("first_step", step=101, seconds=3.0).state(step=101)
    h = story.history()
    why = explain(h, summarise_history(h, None, story.t), story.t)

    assert dict(why.rows)["did"] == "started the workers again; training went on 3.0 s later"


def test_a_live_view_goes_on_when_its_clock_is_set_back(tmp_path: Path, monkeypatch) -> None:
    """The list is read again some seconds later, not an hour; a leader that writes stays alive in it."""
    monkeypatch.chdir(tmp_path)  # ./runs of whoever starts the tests are listed, too
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    passed = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: passed[0])
    story = training(tmp_path, batch="local")
    feed = LiveFeed()
    ((row,),) = feed.overview(story.t)
    assert row.step == 120

    story.state(step=130)
    passed[0] += 5
    ((row,),) = feed.overview(story.t - HOUR)
    assert row.step == 130
    for seconds in range(4):
        story.wait(1).state(step=131 + seconds)
        passed[0] += 1
        detail = feed.detail(story.paths, story.t - HOUR)
    assert (detail.summary.state, detail.summary.silent, detail.now) == ("running", False, story.t)
    passed[0] += 90
    assert feed.detail(story.paths, story.t - HOUR).summary.silent
