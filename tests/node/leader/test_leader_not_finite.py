"""Metrics that are not finite, and waits for data, as the leader writes them."""

from __future__ import annotations

import asyncio

import pytest

from launcher.node.checkpoints import committed
from launcher.run.state import read_state


@pytest.mark.parametrize("late_s", [0.1, 30.0])
def test_only_the_ranks_that_had_it_first_are_named(world, virtual, late_s):
    """After the gradients' exchange every rank's loss is NaN, a step later, however long steps are: one event, and one when all are well."""
    w = world()
    w.total_steps, w.step_s = 400, 0.5

    async def script():
        await w.until(lambda: (read_state(w.paths.state).get("step") or 0) >= 20)
        w.find(1).say("not_finite", step=20, metric="loss", value="nan")
        await asyncio.sleep(late_s)
        for rank in (3, 0, 2):
            w.find(rank).say("not_finite", step=21, metric="loss", value="nan")
        await asyncio.sleep(5)
        for rank in (1, 0, 2):
            w.find(rank).say("not_finite", step=20, metric="loss", value="nan", until=40)
        await asyncio.sleep(5)
        assert len(w.events("not_finite")) == 1
        w.find(3).say("not_finite", step=21, metric="loss", value="nan", until=41)

    assert virtual(w.attempt_once(script)).state == "completed"
    begins, ends = w.events("not_finite")
    assert (begins["step"], begins["metric"], begins["value"]) == (20, "loss", "nan")
    assert begins["ranks"] == ends["ranks"] == [{"rank": 1, "host": "n0"}]
    assert "until" not in begins
    assert ends["until"] == 41


@pytest.mark.parametrize(
    ("until", "end", "left"),
    [
        (None, "none", [30, 90, 100]),
        (None, "a rank dies", [30, 90, 100]),
        (None, "preempted", [30, 90, 100]),
        (57, "none", [90, 100]),
        (57, "preempted", [90, 100]),
    ],
)
def test_the_last_checkpoint_before_a_nan_stays(world, virtual, until, end, left):
    """It is the one that `status` says to go back to: keep_last does not count it, in later rounds and attempts, until all is finite again."""
    w = world(nodes=1, checkpoint={"interval_steps": 10, "keep_last": 2})
    w.total_steps, w.step_s = 100, 0.5

    def bad(worker, **more):
        if worker.rank == 1:
            worker.say("not_finite", step=35, metric="loss", value="nan", **more)

    w.hooks[35] = [bad]
    if until is not None:
        w.hooks[until] = [lambda worker: bad(worker, until=until)]
    if end == "a rank dies":
        w.hooks[65] = [lambda worker: w.hooks.pop(65) and worker.die(9)]
    if end == "preempted":
        w.hooks[65] = [lambda worker: w.hooks.pop(65) and w.signal()]

    outcome = virtual(w.attempt_once())
    if end == "preempted":
        assert outcome.state == "requeued"
        outcome = virtual(w.attempt_once())

    assert outcome.state == "completed"
    assert committed.committed_steps(w.paths) == left


def test_a_nan_of_a_later_round_keeps_its_own_checkpoint_too(world, virtual):
    """The first one was never told as past, as its round ended: it may have been, and then the second has another last good checkpoint."""
    w = world(nodes=1, checkpoint={"interval_steps": 10, "keep_last": 2})
    w.total_steps, w.step_s = 110, 0.5
    w.hooks[35] = [lambda worker: worker.say("not_finite", step=35, metric="loss", value="nan")]
    w.hooks[65] = [lambda worker: w.hooks.pop(65) and worker.die(9)]
    w.hooks[75] = [lambda worker: worker.say("not_finite", step=75, metric="loss", value="nan")]

    assert virtual(w.attempt_once()).state == "completed"
    assert [e["resume_step"] for e in w.events("round_started")[1:]] == [60]
    assert committed.committed_steps(w.paths) == [30, 70, 100, 110]


def test_a_run_that_goes_back_to_before_a_nan_has_none(world, virtual):
    """What was bad lies beyond: the checkpoints that it makes anew are pruned as ever."""
    w = world(nodes=1, checkpoint={"interval_steps": 10, "keep_last": 2})
    w.total_steps, w.step_s = 100, 0.5
    w.hooks[35] = [lambda worker: worker.say("not_finite", step=35, metric="loss", value="nan")]
    w.hooks[38] = [lambda worker: (w.hooks.pop(35), w.hooks.pop(38)) and worker.die(9)]

    assert virtual(w.attempt_once()).state == "completed"
    assert [e["resume_step"] for e in w.events("round_started")[1:]] == [30]
    assert committed.committed_steps(w.paths) == [90, 100]


def test_the_part_of_a_step_that_waits_for_data_is_in_the_picture(world, virtual):
    """Rank 2 waits half of its time for data; the others do not."""
    w = world()
    w.total_steps = 60
    seen = {}

    async def script():
        await w.until(lambda: (read_state(w.paths.state).get("step") or 0) >= 20)
        for step in range(20, 40):
            w.find(2).say("progress", step=step, step_time_s=0.4, data_s=0.2)
        await asyncio.sleep(2)
        seen.update({r["rank"]: r["data_part"] for r in read_state(w.paths.state)["ranks"]})

    virtual(w.attempt_once(script))
    assert seen[2] > 0.1
    assert seen[0] == 0.0
