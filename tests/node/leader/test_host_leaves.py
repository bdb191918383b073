"""TERM that some nodes hear and others do not: their hosts are shut down, and nobody has cancelled the run."""

from __future__ import annotations

import asyncio

import pytest
from acts import plain_script

from launcher.node.allocation import host_end
from launcher.node.allocation.allocation import SignalMeaning
from launcher.run.spec import Work


def leaving(world, **changes):
    """A run at half a second a step; SLURM knows nothing of a TERM."""
    w = world(**{"checkpoint": {"interval_steps": 1000}, **changes})
    w.allocation.means = SignalMeaning("terminated")
    w.step_s = 0.5
    return w


def heard(w, *nodes, step=12, after_s=0.0):
    """A script: TERM on these nodes, once somebody is at ``step``; ``after_s`` between one and the next."""

    async def script():
        await w.until(lambda: any(x.entered >= step for n in w.nodes for x in n.workers))
        for node in nodes:
            w.nodes[node].up("signal", name="TERM")
            await asyncio.sleep(after_s)

    return script


def test_a_host_that_is_shut_down_is_done_without(world, virtual):
    """The run stops at an agreed step and goes on on the spare; nothing is said to SLURM, and no request stays on file."""
    w = leaving(world, spare_nodes=1)

    assert virtual(w.attempt_once(heard(w, 1))).state == "completed"
    assert w.allocation.said == []
    (stopped,), (_, second) = w.events("stopped"), w.events("round_started")
    assert (stopped["lost_steps"], second["resume_step"]) == (0, stopped["step"])
    assert {r["host"] for r in second["ranks"]} == {"n0", "n2"}
    assert [(e["host"], e["meaning"]) for e in w.events("signal")] == [("n1", "host_leaves")]
    assert [e["hosts"] for e in w.events("excluded")] == [["n1"]]
    assert not w.paths.request.exists()
    (decision, _) = w.events("decision")
    assert decision["reason"] == ("TERM was sent on n1 alone, as when a host is shut down; the workers start again.")


@pytest.mark.parametrize("gone", [False, True], ids=["answers", "gone"])
def test_without_a_spare_the_run_is_requeued_without_that_host(world, virtual, gone):
    """With its work saved, where the host still lives for some seconds."""
    w = leaving(world)

    async def script():
        await heard(w, 1)()
        if gone:
            w.nodes[1].die()

    assert virtual(w.attempt_once(script)).state == "requeued"
    assert w.allocation.said == [("hand_back", ("n1",), 0.0), ("pull_forward", [])]
    assert [e["evidence"] for e in w.events("decision")] == ["node_lost" if gone else "node_leaves"]
    assert bool(w.events("saved")) is not gone


def test_a_script_goes_on_too(world, virtual):
    """Its ranks on that host end by the same TERM; how the others end follows from that."""
    w = leaving(world, spare_nodes=1, work=Work(kind="script", target="train.py"))
    w.worker_class = plain_script(w, seconds=60)

    async def script():
        await w.until(lambda: len(w.events("round_started")) == 1 and all(n.workers for n in w.nodes[:2]))
        await asyncio.sleep(5)
        w.nodes[1].up("signal", name="TERM")
        for worker in list(w.nodes[1].workers):
            worker.task.cancel()
            w.nodes[1].exited(worker, None, 15)

    assert virtual(w.attempt_once(script)).state == "completed"
    assert [d["evidence"] for d in w.events("decision")] == ["node_leaves", "done"]


@pytest.mark.parametrize("after_s", [0.0, 1.5])
def test_term_that_every_agent_hears_was_sent_by_hand(world, virtual, after_s):
    """Also where it takes a while to reach all: cancelled runs never come back."""
    w = leaving(world, spare_nodes=1)

    assert virtual(w.attempt_once(heard(w, 0, 1, 2, after_s=after_s))).state == "cancelled"
    assert ("forbid_requeue",) in w.allocation.said
    assert w.paths.request.exists()
    assert w.events("excluded") == []


@pytest.mark.parametrize("late", [False, True])
def test_a_cancelled_step_cancels_though_an_agent_has_another(world, virtual, late):
    """`scancel JOB.0` sends no TERM to an agent that was started again, in a step of its own; slurmstepd's words tell, also later."""
    w = leaving(world, spare_nodes=1)
    w.allocation.is_step_cancelled = True
    if late:
        w.allocation.means = SignalMeaning("unknown")

    async def script():
        await heard(w, 0, 1)()
        await w.until(lambda: not late or w.events("round_ended"))
        w.allocation.means = SignalMeaning("terminated")

    assert virtual(w.attempt_once(script)).state == "cancelled"
    assert ("forbid_requeue",) in w.allocation.said
    assert w.events("excluded") == []


def test_a_run_of_one_node_is_requeued_where_its_host_is_shut_down(world, virtual, tmp_path, monkeypatch):
    """Nobody is spared there: systemd's notice tells. The run comes back on another host."""
    (tmp_path / "nologin").write_text("System is going down.")
    monkeypatch.setattr(host_end, "_NOTICE", tmp_path / "nologin")
    w = leaving(world, nodes=1)

    assert virtual(w.attempt_once(heard(w, 0))).state == "requeued"
    assert w.allocation.said == [("hand_back", ("n0",), 0.0), ("pull_forward", [])]
    assert w.events("stopped")[0]["lost_steps"] == 0
    assert not w.paths.request.exists()


def test_a_word_that_comes_late_still_cancels(world, virtual):
    """SLURM reached two of three at once and the third after seconds: the stop that has begun for two hosts is a cancel then."""
    w = leaving(world, spare_nodes=1)
    w.save_s = 20.0

    async def script():
        await heard(w, 0, 1)()
        await w.until(lambda: w.events("stop_requested"))
        await asyncio.sleep(3.0)
        w.nodes[2].up("signal", name="TERM")

    assert virtual(w.attempt_once(script)).state == "cancelled"


def test_who_says_nothing_is_no_host_that_was_spared(world, virtual):
    """An agent that stands still has heard nothing, and tells nothing: the others alone count."""
    w = leaving(world, spare_nodes=1)

    async def script():
        await w.until(lambda: any(x.entered >= 12 for n in w.nodes for x in n.workers))
        w.nodes[2].cut = True
        await heard(w, 0, 1)()

    assert virtual(w.attempt_once(script)).state == "cancelled"


def test_slurm_may_answer_late(world, virtual):
    """The workers were stopped and saved meanwhile; then the nodes are told apart as ever."""
    w = leaving(world, spare_nodes=1)
    w.allocation.means = SignalMeaning("unknown")

    async def script():
        await heard(w, 1)()
        await w.until(lambda: w.events("round_ended"))
        w.allocation.means = SignalMeaning("terminated")

    assert virtual(w.attempt_once(script)).state == "completed"
    assert [d["evidence"] for d in w.events("decision")] == ["node_leaves", "done"]
    assert [e["meaning"] for e in w.events("signal")] == ["unknown", "host_leaves"]


def test_what_slurm_did_not_explain_is_asked_for_not_an_earlier_term(world, virtual):
    """USR2 announces the time limit long after that host has left, and SLURM names the cause only when the work is saved: handed back."""
    w = leaving(world, spare_nodes=1)
    means = {"TERM": SignalMeaning("terminated"), "USR2": SignalMeaning("unknown")}
    w.allocation.meaning = means.__getitem__
    w.total_steps = 400

    async def script():
        await heard(w, 1)()
        await w.until(lambda: any(x.entered >= 200 for n in w.nodes for x in n.workers))
        w.signal("USR2")
        await w.until(lambda: w.events("stop_requested")[1:])
        means["USR2"] = SignalMeaning("time_limit", 150.0)

    assert virtual(w.attempt_once(script)).state == "requeued"
    assert [d["evidence"] for d in w.events("decision")] == ["node_leaves", "time_limit"]


def test_while_nodes_are_waited_for_such_a_node_does_not_count(world, virtual):
    """It leaves at once: the run begins on the others."""
    w = leaving(world, spare_nodes=1)

    async def script():
        await w.until(lambda: w.events("node_joined"))
        w.nodes[1].join()
        await asyncio.sleep(0.1)
        w.nodes[1].up("signal", name="TERM")
        await asyncio.sleep(5.0)
        w.nodes[2].join()

    assert virtual(w.attempt_once(script, absent=(1, 2))).state == "completed"
    (started,) = w.events("round_started")
    assert {r["host"] for r in started["ranks"]} == {"n0", "n2"}
