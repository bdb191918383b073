"""How often the leader has the workers save, in virtual time."""

from __future__ import annotations

import asyncio
import errno
import os
import queue
import threading

import pytest

from launcher.node.checkpoints import trash


def deaths_at(w, steps):
    """Rank 1 dies once at each of these steps."""
    left = set(steps)

    def die(worker):
        if worker.begun in left:
            left.discard(worker.begun)
            w.find(1).die(9)

    for step in steps:
        w.hooks[step] = [die]


def test_the_automatic_interval_follows_cost_and_failures(world, virtual):
    """Young and Daly: cheap saves come often, dear ones seldom, and more often once ranks have begun to die."""
    counts = {}
    for name, blocked_s, deaths in (("cheap", 0.0005, 0), ("dear", 0.05, 0), ("dying", 0.05, 8)):
        w = world(checkpoint={"min_interval_min": 0.05}, restart={"max_restarts": 99}, nodes=1)
        w.total_steps, w.step_s, w.blocked_s = 3000, 0.1, blocked_s
        deaths_at(w, [40 + 7 * n for n in range(deaths)])
        assert virtual(w.attempt_once()).state == "completed"
        assert len(w.events("round_started")) == 1 + deaths
        counts[name] = (
            len({e["step"] for e in w.events("saved")}) - 1
        )  # the last one comes at the end, whatever the interval

    assert counts["cheap"] > 3 * counts["dear"]
    assert counts["dying"] > 2 * counts["dear"]


@pytest.mark.parametrize(
    ("step", "order", "told"),
    [
        (10, [errno.ENOENT, errno.ENOSPC], ["ENOSPC"]),
        (10, [errno.ENOSPC, errno.ENOENT], ["ENOSPC"]),
        (40, [errno.ENOENT, errno.ENOSPC], ["ENOSPC"]),
        (40, [errno.ENOSPC, errno.ENOENT], ["ENOSPC"]),
        (10, [errno.ENOENT], ["ENOENT"]),
    ],
    ids=["its word comes later", "first", "last step, later", "last step, first", "alone"],
)
def test_a_folder_taken_away_by_a_rank_that_failed_is_no_failure_of_its_own(world, virtual, step, order, told):
    """A rank whose disk is full takes its files and the folder away: another's ENOENT, whichever word comes first, is not told."""
    w = world(nodes=1, checkpoint={"interval_steps": 10})
    base = w.worker_class
    failing = dict(enumerate(order))

    class Failing(base):
        async def save(self, at):
            if at != step or self.rank not in failing:
                return await super().save(at)
            self.say("save_begun", step=at)
            await asyncio.sleep(0.1 + 0.2 * self.rank)
            number = failing.pop(self.rank)
            self.say("save_failed", step=at, error=os.strerror(number), errno=number)
            if at == w.total_steps:  # as a session does at the end
                await asyncio.sleep(2)
                await super().save(at)

    w.worker_class = Failing

    assert virtual(w.attempt_once()).state == "completed"
    assert [e["errno_name"] for e in w.events("save_failed")] == told
    assert w.events("saved")[-1]["step"] == 40


def test_every_rank_hears_that_all_save_or_that_none_does(world, virtual):
    """One rank's boundary has passed: the save is lost for all. Else all are told, and may save: at the boundary they wait for this word."""
    w = world(checkpoint={"interval_min": 0.05})
    w.total_steps, w.step_s = 200, 0.1
    heard = []

    class Late(w.worker_class):
        def hear(self, m):
            if m["type"].startswith("save_"):
                heard.append((m["step"], m["type"], self.rank))
            if m["type"] == "save_at" and self.rank == 2 and m["step"] == heard[0][0]:
                self.say("save_ack", id=m["id"], ok=False)
            else:
                super().hear(m)

    w.worker_class = Late
    assert virtual(w.attempt_once()).state == "completed"

    asked = list(dict.fromkeys(step for step, *_ in heard))
    words = {
        step: {type_: {r for s, t, r in heard if (s, t) == (step, type_)} for _, type_, _ in heard} for step in asked
    }
    everybody = {0, 1, 2, 3}
    assert (words[asked[0]]["save_lost"], words[asked[0]]["save_agreed"]) == (everybody, set())
    assert len(asked) > 2
    assert all((words[step].get("save_lost"), words[step]["save_agreed"]) == (set(), everybody) for step in asked[1:-1])


def test_a_number_of_steps_that_was_not_all_ends_no_saves(world, virtual):
    """A loop per epoch: what the first loop said is withdrawn (0), and saves by time are asked for beyond its end."""
    w = world(checkpoint={"interval_min": 0.05}, nodes=1)
    w.total_steps, w.step_s = 400, 0.1

    class ByEpochs(w.worker_class):
        def say(self, type_, **values):
            total = 20 if values.get("step", 0) <= 20 else 0
            super().say(type_, **{**values, "total_steps": total} if type_ == "progress" else values)

    w.worker_class = ByEpochs
    assert virtual(w.attempt_once()).state == "completed"
    assert len([e for e in w.events("saved") if 20 < e["step"] < 400]) > 3


def test_nobody_waits_for_the_deletion_of_a_lost_save(world, virtual, monkeypatch):
    """Terabytes on a slow file system take minutes: neither the leader's loop, which agents give up after 8 s, nor a requeue waits."""
    slow, begun, deleted = threading.Event(), threading.Event(), queue.SimpleQueue()

    def rmtree(folder, **how):
        if ".tmp." in folder.name and threading.current_thread() is not threading.main_thread():
            begun.set()
            deleted.put(slow.wait(200))

    monkeypatch.setattr(trash.shutil, "rmtree", rmtree)
    w = world(nodes=2, checkpoint={"interval_steps": 10})
    w.hooks[9] = [lambda worker: setattr(w, "disk_full", True)]
    w.hooks[15] = [lambda worker: setattr(w, "disk_full", False)]
    w.hooks[25] = [lambda worker: worker.round == 0 and worker.rank == 0 and worker.die(9)]

    assert virtual(w.attempt_once()).state == "completed"
    assert w.events("save_failed")
    assert begun.is_set()
    slow.set()
    assert deleted.get(timeout=60) is True


def test_one_failed_save_after_a_long_gap_is_tried_again(world, virtual):
    """Work is at risk from the first failed save on: a checkpoint that lies longer back than `max_at_risk_min` does not count."""
    w = world(checkpoint={"interval_steps": 30}, restart={"max_at_risk_min": 1.0})
    w.step_s, w.total_steps = 5.0, 50

    def full(worker):
        w.disk_full = True
        asyncio.get_running_loop().call_later(20.0, lambda: setattr(w, "disk_full", False))

    w.hooks[29] = [full]

    assert virtual(w.attempt_once()).state == "completed"
    assert [e["step"] for e in w.events("save_failed")] == [30]
    assert w.events("saved")[-1]["step"] == 50


def test_a_save_that_is_stuck_is_at_risk_since_it_was_last_heard_of(world, virtual):
    """One rank's part never comes: the run ends `max_at_risk_min` after the last word of that save, not after the last checkpoint."""
    w = world(checkpoint={"interval_steps": 24}, restart={"max_at_risk_min": 31.0, "max_restarts": 0})
    w.step_s, w.total_steps = 5.0, 2000

    class Stuck(w.worker_class):
        async def save(self, step):
            if self.rank != 1:
                await super().save(step)

    w.worker_class = Stuck

    ending = virtual(w.attempt_once())

    assert (ending.state, "no checkpoint" in ending.reason.lower()) == ("failed", True)
    began = w.events("save_started")[0]["t"]
    (decided,) = (e["t"] for e in w.events("decision"))
    assert 1855 < decided - began < 1880
