"""`restart.queue_early`: the job of the next attempt is queued when training begins, held until the time limit."""

from __future__ import annotations

import pytest

from launcher.node.allocation.allocation import NotAnsweredError, SignalMeaning


def early(world, means="nothing", **changes):
    """A run that asks for it, and what a signal means."""
    w = world(restart={"queue_early": True}, **changes)
    w.allocation.means = SignalMeaning(means, 60.0)
    return w


def said(w):
    """What SLURM was asked, without what every run asks."""
    return [one[0] for one in w.allocation.said if one[0] in ("queue_early", "hand_back", "withdraw_early")]


async def signalled(w):
    """A signal at step 12."""
    await w.until(lambda: any(x.entered >= 12 for n in w.nodes for x in n.workers))
    w.signal("USR2")


def test_a_run_that_ends_takes_it_back(world, virtual):
    """Queued once; nothing may start after the end."""
    w = early(world)
    assert virtual(w.attempt_once()).state == "completed"
    assert said(w) == ["queue_early", "withdraw_early"]
    assert [e["job_id"] for e in w.events("queued_early")] == ["79"]


@pytest.mark.parametrize(("means", "used"), [("time_limit", True), ("preempted", False)])
def test_the_time_limit_alone_uses_it(world, virtual, means, used):
    """A preempted job is requeued as ever: the other one waits for that one's next end."""
    w = early(world, means)
    assert virtual(w.attempt_once(lambda: signalled(w))).state == "requeued"
    assert said(w) == ["queue_early", "hand_back"]
    assert w.allocation.early is used


def test_what_is_not_asked_for_is_not_queued(world, virtual):
    """Off by default."""
    w = world()
    w.allocation.means = SignalMeaning("time_limit", 60.0)
    assert virtual(w.attempt_once(lambda: signalled(w))).state == "requeued"
    assert said(w) == ["hand_back"]
    assert not w.allocation.early


def test_a_refusal_is_told_once(world, virtual):
    """Other jobs wait for this one, say: the run goes on, and is requeued at its limit."""
    w = early(world)
    w.allocation.refuses = "other jobs wait for this one"
    assert virtual(w.attempt_once()).state == "completed"
    assert said(w) == ["queue_early", "withdraw_early"]
    (text,) = (e["text"] for e in w.events("warning"))
    assert text == "the job of the next attempt is not queued early: other jobs wait for this one"


def test_slurm_that_does_not_answer_is_asked_again(world, virtual, monkeypatch):
    """It is being restarted just when training begins."""
    w = early(world)
    w.step_s = 5.0
    real, silent = w.allocation.queue_early, [True]

    def queue_early():
        if silent.pop() if silent else False:
            raise NotAnsweredError("SLURM does not answer")
        return real()

    monkeypatch.setattr(w.allocation, "queue_early", queue_early)
    assert virtual(w.attempt_once()).state == "completed"
    assert len(w.events("queued_early")) == 1
    assert w.events("warning") == []
