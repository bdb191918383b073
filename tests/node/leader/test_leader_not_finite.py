"""Metrics that are not finite, and waits for data, as the leader writes them."""

from __future__ import annotations

import asyncio

from launcher.run.state import read_state


def test_only_the_ranks_that_had_it_first_are_named(world, virtual):
    """After the gradients' exchange every rank's loss is NaN, a step later: one event, and again when it is finite again."""
    w = world()
    w.total_steps = 200

    async def script():
        await w.until(lambda: (read_state(w.paths.state).get("step") or 0) >= 20)
        for rank in (3, 0, 2, 1):
            w.find(rank).say("not_finite", step=20 if rank == 1 else 21, metric="loss", value="nan")
            await asyncio.sleep(0.1)
        await asyncio.sleep(5)
        for rank in range(4):
            w.find(rank).say("not_finite", step=20, metric="loss", value="nan", until=40)

    assert virtual(w.attempt_once(script)).state == "completed"
    begins, ends = w.events("not_finite")
    assert (begins["step"], begins["metric"], begins["value"]) == (20, "loss", "nan")
    assert [r["rank"] for r in begins["ranks"]] == [1]
    assert begins["ranks"][0]["host"] == "n0"
    assert (ends["until"], sorted(r["rank"] for r in ends["ranks"])) == (40, [0, 1, 2, 3])


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
