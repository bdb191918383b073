"""What a run's time between two attempts is called: held, in the queue, or wanted by nobody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_story import T0, Story

from launcher.report.model.ledger import Ledger, ledger
from launcher.report.model.summary import summarise_history
from launcher.report.model.timeline import timeline

HOUR = 3600.0


def trained(folder: Path, **spec: object) -> Story:
    """An attempt that is in its first round: an hour of training, a checkpoint at its end."""
    story = Story(folder, gpus_per_node=4, **spec).submitted().wait(60).begins().wait(30).round_starts().wait(10)
    story.event("first_step", step=1, seconds=10.0).wait(HOUR)
    return story.event("save_started", step=1000).event("saved", step=1000, seconds=0.0, reason="interval")


def again(story: Story, gap: float) -> Story:
    """After ``gap`` seconds the user submits it once more; it waits a minute in the queue and goes on."""
    number, story.attempt, story.round = story.attempt, None, None
    story.wait(gap).submitted(by="resubmit")
    story.attempt = number
    story.wait(60).begins(submitted_t=story.t - 60).wait(30).round_starts(resume_step=1000)
    return story.wait(10).event("first_step", step=1001, seconds=10.0).wait(HOUR)


def book_of(story: Story) -> Ledger:
    """Its ledger up to now."""
    return ledger(story.history(), story.t)


def test_the_time_after_a_silent_death_is_nobodys(tmp_path: Path) -> None:
    """A leader that dies and leaves no message trained until its last event; from the resubmission on the run is in the queue."""
    book = book_of(again(trained(tmp_path), 24 * HOUR))

    assert (book.seconds["away"], book.seconds["queued"]) == (pytest.approx(24 * HOUR), pytest.approx(120))
    assert book.seconds["useful"] == pytest.approx(2 * HOUR)
    assert book.gpu_hours == pytest.approx(8 * (2 * HOUR + 80) / HOUR)


def test_the_picture_of_a_dead_leader_tells_how_long_it_lived(tmp_path: Path) -> None:
    """It is written once a second, events are not; while the resubmitted run is in the queue it is still there."""
    story = trained(tmp_path).wait(600)
    story.state(step=1200)
    story.attempt, story.round = None, None
    story.wait(10 * HOUR).submitted(by="resubmit").wait(30)
    book = book_of(story)

    assert book.seconds["away"] == pytest.approx(10 * HOUR)
    assert (book.seconds["useful"], book.seconds["queued"]) == (pytest.approx(HOUR + 600), pytest.approx(90))


@pytest.mark.parametrize("by", ["the user", "SLURM"])
def test_the_samples_of_a_dead_leader_tell_how_long_it_lived(tmp_path: Path, by: str) -> None:
    """A plain script has no events for hours, and the next attempt's leader replaces the picture; its samples stay."""
    story = (
        Story(tmp_path, work={"kind": "script", "target": "train.py"})
        .submitted()
        .wait(9)
        .begins()
        .wait(9)
        .round_starts()
    )
    lines = [{"t": story.t + 10 * k, "attempt": 0, "round": 0, "ranks": []} for k in range(int(HOUR) // 10)]
    later = {"t": T0 + 2.5 * HOUR, "attempt": 1, "round": 0, "ranks": []}
    story.paths.samples.write_text("".join(json.dumps(line) + "\n" for line in [*lines, later]))
    story.wait(2 * HOUR)
    if by == "the user":
        story.submitted(by="resubmit", attempt=None)
    story.begins(submitted_t=story.t if by == "the user" else T0).round_starts().wait(HOUR).state(step=0)
    book = book_of(story)

    assert book.seconds["away" if by == "the user" else "queued"] == pytest.approx(HOUR, abs=20)
    assert book.seconds["useful"] == pytest.approx(2 * HOUR, abs=20)


@pytest.mark.parametrize("handed_back", ["requeued", "SLURM does not answer"])
def test_a_run_that_is_cancelled_in_the_queue_held_nothing_there(tmp_path: Path, handed_back: str) -> None:
    """Preempted, given back, cancelled ten hours later: these hours are the queue's, whatever the end is."""
    story = trained(tmp_path).event("stopped", step=1000, lost_steps=0)
    story.event("attempt_ended", why="preempted", allocation_s=HOUR + 40)
    if handed_back == "requeued":
        story.event("requeued", how="requeue", job_id="482913", seconds=1.0)
    story.attempt, story.round = None, None
    book = book_of(story.wait(10 * HOUR).outcome("cancelled", "It was cancelled."))

    assert (book.seconds["queued"], book.seconds["stopped"]) == (pytest.approx(10 * HOUR + 60), 0)
    assert book.gpu_hours == pytest.approx(8 * (HOUR + 40) / HOUR)


def test_an_attempt_that_ends_the_run_holds_its_nodes_until_then(tmp_path: Path) -> None:
    """Between the end of an attempt and that of its run nothing trains, and nothing waits."""
    story = trained(tmp_path).event("attempt_ended", why="done", allocation_s=HOUR + 40).wait(20)
    book = book_of(story.outcome("completed", step=1000))

    assert (book.seconds["stopped"], book.seconds["queued"]) == (pytest.approx(20), pytest.approx(60))


@pytest.mark.parametrize("why", ["resubmit --from 1000", "a damaged checkpoint"])
def test_a_checkpoint_that_was_gone_back_behind_is_no_longer_the_newest(tmp_path: Path, why: str) -> None:
    """`saved` names one that a resumption would find, and steps that only a forsaken one had kept are lost."""
    story = (
        trained(tmp_path).wait(HOUR).event("save_started", step=2000).event("saved", step=2000, seconds=0.0, path="x")
    )
    story.event("worker_failed", rank=1, host="node1", step=2000)
    if why == "a damaged checkpoint":
        story.event("checkpoint_damaged", path="checkpoints/step-00002000", why="hash").round_starts(resume_step=1000)
    else:
        story.event("attempt_ended", why="x").outcome("failed", "boom", step=2000)
        story.paths.outcome.unlink()
        story.submitted(by="resubmit").begins().round_starts(resume_step=1000)
    story.event("first_step", step=1001).wait(HOUR / 2).event("worker_failed", rank=1, host="node1", step=1500)
    story.event("attempt_ended", why="x").outcome("failed", "boom", step=1500)
    h = story.history()
    book, summary = ledger(h, story.t), summarise_history(h, None, story.t)

    assert summary.saved_step == 1000
    assert book.seconds["useful"] == pytest.approx(HOUR, rel=0.01)
    assert book.seconds["lost"] == pytest.approx(1.5 * HOUR, rel=0.01)


@pytest.mark.parametrize("total_steps", [None, 500])
def test_a_script_that_counts_its_steps_and_did_none_trained_nothing(tmp_path: Path, total_steps: int | None) -> None:
    """With attach() the picture has the number of steps; of a script that tells nothing all time in a round is training."""
    story = Story(tmp_path, work={"kind": "script", "target": "train.py"}).submitted().begins().wait(10).round_starts()
    story.state(total_steps=total_steps, phase="starting").wait(100)
    pieces = [(s.kind, s.seconds) for s in timeline(story.history(), story.t)]

    assert pieces == ([("start-up", 10), ("useful", 100)] if total_steps is None else [("start-up", 110)])
    assert story.t == T0 + 110
