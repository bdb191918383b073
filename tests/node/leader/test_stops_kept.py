"""A stop that was asked for is carried out whatever happens meanwhile: a lost node or store, the leader's own death."""

from __future__ import annotations

import asyncio
import errno

import pytest

from launcher.node.allocation.allocation import SignalMeaning
from launcher.node.checkpoints import committed

SPARES = pytest.mark.parametrize("spares", [0, 1])


def training(world, kind, *, left_s=None, **job):
    """A run that has done ten steps of a million, and whose save takes 20 s; SLURM's signal means ``kind``."""
    w = world(checkpoint={"interval_steps": 1000}, site={"grace_s": 120}, **job)
    w.allocation.means = SignalMeaning(kind, left_s)
    w.total_steps, w.step_s, w.save_s = 10**6, 1.0, 20.0
    return w


async def ten_steps(w):
    await w.until(lambda: any(worker.entered >= 10 for node in w.nodes for worker in node.workers))


def ask(w, kind):
    """Ask for the stop, as `launcher cancel --save`, `scancel --signal=TERM` and SLURM do."""
    if kind == "user":
        w.paths.request.write_text("{}")
    w.signal("USR2" if kind == "user" else "TERM")


@SPARES
@pytest.mark.parametrize(
    ("kind", "left_s", "state"),
    [("user", None, "cancelled"), ("terminated", None, "cancelled"), ("preempted", 150.0, "requeued")],
)
def test_a_node_that_is_lost_ends_the_stop_not_the_wish(world, virtual, kind, left_s, state, spares):
    """No requeue of what was cancelled, and no round that would be stopped before its first step."""
    w = training(world, kind, left_s=left_s, spare_nodes=spares)

    async def script():
        await ten_steps(w)
        ask(w, kind)
        await w.until(lambda: bool(w.events("agreed")))
        await asyncio.sleep(2)
        w.nodes[1].die()

    assert virtual(w.attempt_once(script)).state == state
    assert len(w.events("round_started")) == 1
    assert w.events("decision")[0]["t"] - w.events("node_lost")[0]["t"] < 30


@SPARES
def test_a_wish_that_comes_while_a_round_ends_is_heard(world, virtual, spares):
    """A node was lost, and the others are still ending their workers: the run neither goes on nor comes back."""
    w = training(world, "user", spare_nodes=spares)

    async def script():
        await ten_steps(w)
        ended = w.nodes[0].on_end
        w.nodes[0].on_end = lambda order: asyncio.get_running_loop().call_later(8.0, ended, order)
        w.nodes[1].die()
        await w.until(lambda: bool(w.events("node_lost")))
        await asyncio.sleep(1)
        ask(w, "user")

    assert virtual(w.attempt_once(script)).state == "cancelled"
    assert len(w.events("round_started")) == 1


@pytest.mark.parametrize("kind", ["user", "terminated"])
def test_a_leader_that_takes_a_dead_ones_place_ends_the_run(world, virtual, kind):
    """The wish to end the run is on file until the run has ended: its leader may die while the ranks save."""
    w = training(world, kind)
    w.keep()

    async def both():
        leading = asyncio.ensure_future(w.attempt_once())
        await ten_steps(w)
        ask(w, kind)
        await w.until(lambda: bool(w.events("agreed")))
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        w.allocation.means = SignalMeaning("nothing")
        return await w.attempt_once(revived=True)

    assert virtual(both()).state == "cancelled"


@pytest.mark.parametrize("kind", ["user", "terminated"])
def test_a_withdrawn_stop_leaves_no_wish(world, virtual, kind):
    """Ranks that do not agree go on training: a leader that takes over later must not end the run for it."""
    w = training(world, kind)

    async def begun():
        leading = asyncio.ensure_future(w.attempt_once())
        await ten_steps(w)
        for node in w.nodes:
            for worker in node.workers:
                worker.hear = lambda order: None
        ask(w, kind)
        await w.until(lambda: w.paths.request.exists())
        await w.until(lambda: any("withdrawn" in e["text"] for e in w.events("warning")))
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)

    virtual(begun())
    assert not w.paths.request.exists()


def test_a_run_whose_last_checkpoint_is_not_committed_has_not_completed(world, virtual, monkeypatch):
    """Every rank has finished, the folder does not answer, a stop is asked for and a node is lost: the commit is waited for."""
    w = world(checkpoint={"interval_steps": 10})
    w.allocation.means = SignalMeaning("user")
    w.total_steps, w.step_s = 25, 1.0
    real, away = committed.commit_checkpoint, [True]

    def commit(paths, *, step, **how):
        if step == 25 and away:
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(paths, step=step, **how)

    monkeypatch.setattr(committed, "commit_checkpoint", commit)

    async def script():
        await w.until(lambda: any(e["step"] == 25 for e in w.events("save_started")))
        await asyncio.sleep(3)
        ask(w, "user")
        await asyncio.sleep(3)
        w.nodes[1].die()
        await asyncio.sleep(5)
        away.clear()

    assert virtual(w.attempt_once(script)).state == "completed"
    assert w.events("saved")[-1]["step"] == 25
