"""The last acts of an attempt: whose processes the job still waits for, and who asks SLURM until it answers."""

from __future__ import annotations

import asyncio

import pytest
from acts import stop_at

from launcher.node.allocation.allocation import SignalMeaning
from launcher.node.checkpoints import claims
from launcher.node.leader.journal import HistoryWriter


@pytest.mark.parametrize(("how", "last"), [("continuation", "end_step"), ("requeue", "pull_forward")])
def test_a_job_that_is_continued_does_not_wait_for_a_node_that_hangs(world, virtual, how, last):
    """srun waits for every task, and the continuation for srun: the step is ended last of all. SLURM ends a job that it requeues."""
    w = world(checkpoint={"interval_steps": 10})
    w.allocation.how = how
    assert virtual(w.attempt_once(stop_at(w, 12))).state == "requeued"
    assert ("end_step",) not in w.allocation.said  # every agent has left

    w.allocation.said.clear()
    w.allocation.job_id = "78"
    assert virtual(w.attempt_once(absent=(1,))).state == "requeued"
    assert [said[0] for said in w.allocation.said] == ["hand_back", last]


def test_a_node_that_was_given_up_does_not_keep_the_job(world, virtual):
    """Its agent was lost and could not be started again: it may stand still, and srun waits for it behind a run that is over."""
    w = world(checkpoint={"interval_steps": 10}, spare_nodes=1)
    w.keep(refuses="its host does not answer")
    w.allocation.means = SignalMeaning("nothing")
    w.step_s = 0.5

    async def silent():
        await w.until(lambda: any(x.entered >= 12 for n in w.nodes for x in n.workers))
        w.nodes[1].die(silently=True)
        await w.until(lambda: w.events("revival_failed"))

    assert virtual(w.attempt_once(silent)).state == "completed"
    assert w.allocation.said[-1] == ("end_step",)


def test_a_deposed_leader_asks_slurm_no_more(world, virtual):
    """Another one hands the run back while SLURM does not answer: this one leaves as soon as it learns of that."""
    w = world(checkpoint={"interval_steps": 5})
    w.allocation.silent_until = 1e9

    async def deposed():
        await stop_at(w, 12)()
        await w.until(lambda: w.events("decision"))
        await asyncio.sleep(10.0)
        claims.depose(w.paths, 0)
        left.append(asyncio.get_running_loop().time())

    left: list[float] = []

    async def both():
        ending = await w.attempt_once(deposed)
        left.append(asyncio.get_running_loop().time())
        return ending

    assert virtual(both()).state == "requeued"
    began, ended = left
    assert ended - began < 15


def test_jobs_behind_the_run_are_freed_once_its_outcome_is_there(world, virtual, monkeypatch):
    """They start then, and look for it."""
    w, there = world(), []
    monkeypatch.setattr(w.allocation, "run_completed", lambda: there.append(w.paths.outcome.exists()))

    assert virtual(w.attempt_once()).state == "completed"
    assert there == [True]


def test_a_leader_that_is_replaced_while_its_history_is_written_writes_no_outcome(world, virtual, monkeypatch):
    """The flush of the history may take ten seconds, in which a newer claim decides on the run."""
    w, flush = world(), HistoryWriter.flush

    def overtaken(history):
        flush(history)
        claims.depose(w.paths, 0)

    monkeypatch.setattr(HistoryWriter, "flush", overtaken)
    ending = virtual(w.attempt_once())

    assert (ending.state, ending.stale, w.paths.outcome.exists()) == ("requeued", True, False)
