"""Agents and leaders that died are started again in the allocation that is held: nobody waits in the queue for them."""

from __future__ import annotations

import asyncio

import pytest

from launcher.node.allocation.allocation import SignalMeaning
from launcher.node.checkpoints import claims

SAVES = {"interval_steps": 5, "keep_last": 9}


def kept(world, *, keeper=(), **changes):
    """A world with a keeper."""
    w = world(**{"checkpoint": SAVES, **changes})
    w.keep(**dict(keeper))
    w.allocation.means = SignalMeaning("nothing")
    return w


def killed(w, step, index, *, times=1):
    """Node ``index`` loses its agent when somebody is at ``step``, as often as that is reached."""
    left = [None] * times
    w.hooks[step] = [lambda worker: left and (left.pop(), w.nodes[index].die())]


async def led_until(w, true):
    """Run an attempt until its leader is killed, when ``true``."""
    leading = asyncio.ensure_future(w.attempt_once())
    await w.until(true)
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


def test_a_killed_agent_is_started_again_in_place(world, virtual):
    """One attempt, no requeue; the new round has the same nodes in the same order, and begins seconds after the loss."""
    w = kept(world)
    killed(w, 12, 1)

    assert virtual(w.attempt_once()).state == "completed"
    first, second = w.events("round_started")
    assert first["ranks"] == second["ranks"]
    assert second["resume_step"] == 10
    (lost,) = w.events("node_lost")
    assert second["t"] - lost["t"] < 5
    assert [(e["host"], e["seconds"] < 2) for e in w.events("agent_revived")] == [("n1", True)]
    assert [d["action"] for d in w.events("decision")] == ["new_round", "complete"]
    assert w.keeper.heard[-1]["type"] == "shutdown"


def test_without_a_keeper_the_job_is_requeued(world, virtual):
    """As ever: there is nobody who could start an agent."""
    w = world(checkpoint=SAVES)
    killed(w, 12, 1)

    assert virtual(w.attempt_once()).state == "requeued"


def test_a_node_that_loses_its_agent_twice_without_progress_is_given_up(world, virtual):
    """The second time it is not started again; with progress in between it is, as often as that comes."""
    w = kept(world, checkpoint={"interval_steps": 1000})
    killed(w, 12, 1, times=2)
    assert virtual(w.attempt_once()).state == "requeued"
    assert [m["type"] for m in w.keeper.heard].count("revive") == 1

    w = kept(world)
    for step in (12, 17, 22, 27):
        killed(w, step, 1)
    assert virtual(w.attempt_once()).state == "completed"
    assert len(w.events("agent_revived")) == 4


@pytest.mark.parametrize("keeper", [{"refuses": "its host does not answer"}, {"start_s": 1000.0}])
def test_an_agent_that_does_not_come_back_costs_seconds(world, virtual, keeper):
    """The keeper says that it cannot be started, or nothing comes of it: the job is requeued without that host."""
    w = kept(world, keeper=keeper)
    killed(w, 12, 1)

    assert virtual(w.attempt_once()).state == "requeued"
    (lost,) = w.events("node_lost")
    (back,) = w.events("requeued")
    assert back["t"] - lost["t"] < 22
    assert w.allocation.said[0][:2] == ("hand_back", ("n1",))
    assert [e["why"] for e in w.events("revival_failed")] == [v for v in keeper.values() if isinstance(v, str)]


@pytest.mark.parametrize("meaning", ["terminated", "preempted"])
def test_a_cancelled_step_whose_agents_were_killed_cancels_the_run(world, virtual, meaning):
    """The keeper tells it; no host is excluded. Where SLURM names another cause, that holds: it ends every step, too."""
    w = kept(world, nodes=3, keeper={"refuses": "SLURM is ending the job"})
    w.keeper.step_cancelled = w.allocation.is_step_cancelled = True
    w.allocation.means = SignalMeaning(meaning, 60.0 if meaning == "preempted" else None)
    w.hooks[12] = [lambda worker: [w.nodes[index].die() for index in (1, 2)]]

    assert virtual(w.attempt_once()).state == {"terminated": "cancelled", "preempted": "requeued"}[meaning]
    assert [e["hosts"] for e in w.events("excluded") if meaning == "terminated"] == []
    assert (("forbid_requeue",) in w.allocation.said) is (meaning == "terminated")
    assert {e["meaning"] for e in w.events("signal")} == {meaning}


def test_a_spare_does_not_wait_for_the_revival(world, virtual):
    """The new round begins on the spare at once; the agent that comes back is a spare from then on."""
    w = kept(world, spare_nodes=1, keeper={"start_s": 5.0})
    w.step_s = 0.5
    killed(w, 12, 1)

    assert virtual(w.attempt_once()).state == "completed"
    _, second = w.events("round_started")
    assert {r["host"] for r in second["ranks"]} == {"n0", "n2"}
    (lost,) = w.events("node_lost")
    assert second["t"] - lost["t"] < 2
    assert len(w.events("agent_revived")) == 1


def test_nothing_is_started_again_while_the_run_is_being_stopped(world, virtual):
    """SLURM takes the nodes away: agents that end now are not missed."""
    w = kept(world)
    w.allocation.means = SignalMeaning("preempted", 60.0)

    async def script():
        await w.until(lambda: any(x.entered >= 12 for n in w.nodes for x in n.workers))
        w.signal()
        await w.until(lambda: w.leader._board.interrupt is not None)
        w.nodes[1].die()

    assert virtual(w.attempt_once(script)).state == "requeued"
    assert "revive" not in [m["type"] for m in w.keeper.heard]


def test_another_leader_goes_on_in_the_same_attempt(world, virtual):
    """It claims the dead one's attempt, resumes from its newest checkpoint, and counts its death as a restart."""
    w = kept(world, preflight=True)

    async def both():
        await led_until(w, lambda: any(x.entered >= 13 for n in w.nodes for x in n.workers))
        return await w.attempt_once(revived=True)

    assert virtual(both()).state == "completed"
    assert [e["attempt"] for e in w.events("attempt_started")] == [0]
    assert [(e["attempt"], e["leader"]) for e in w.events("leader_revived")] == [(0, 1)]
    assert [(e["round"], e["resume_step"]) for e in w.events("round_started")] == [(0, None), (1, 10)]
    assert [(d["evidence"], d["action"]) for d in w.events("decision")] == [
        ("leader_gone", "new_round"),
        ("done", "complete"),
    ]
    assert len(w.events("preflight")) == 1
    assert w.outcome["attempt"] == 0
    assert w.leftovers() == []


def test_the_leader_of_another_host_goes_on_without_the_lost_one(world, virtual):
    """Nobody waits for the host that SLURM has removed: a spare takes its place, in the same attempt, within a second.

    The keeper was on it: a warning says what that means.
    """
    w = world(checkpoint=SAVES, spare_nodes=1)
    w.allocation.means = SignalMeaning("nothing")

    async def both():
        await led_until(w, lambda: any(x.entered >= 13 for n in w.nodes for x in n.workers))
        return await w.attempt_once(revived=True, lost=("n0",))

    assert virtual(both()).state == "completed"
    (moved,) = w.events("leader_revived")
    assert (moved["host"], moved["moved_to"], moved["attempt"]) == ("n0", "n1", 0)
    second = w.events("round_started")[1]
    assert ({r["host"] for r in second["ranks"]}, second["resume_step"]) == ({"n1", "n2"}, 10)
    assert second["t"] - moved["t"] < 1
    assert next((d["evidence"], d["action"]) for d in w.events("decision")) == ("leader_gone", "new_round")
    assert [m["line"] for m in w.nodes[2].heard if m["type"] == "welcome"][-1] == [2]
    assert [e["host"] for e in w.events("node_lost") if e["t"] >= moved["t"]] == []
    (warned,) = w.events("warning")
    assert warned["text"].startswith("the batch script and its keeper ended with n0: an agent or a leader that dies")


def test_where_leadership_moves_on_nobody_is_warned_again(world, virtual):
    """The host of the leader that had moved is lost, too: that there is no keeper has been said."""
    w = world(checkpoint=SAVES, spare_nodes=2)
    w.allocation.means = SignalMeaning("nothing")
    reached = lambda step: any(x.entered >= step for n in w.nodes for x in n.workers)  # noqa: E731

    async def all_of_them():
        await led_until(w, lambda: reached(13))
        leading = asyncio.ensure_future(w.attempt_once(revived=True, lost=("n0",)))
        await w.until(lambda: len(w.events("round_started")) == 2 and reached(17))
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        return await w.attempt_once(revived=True, lost=("n0", "n1"))

    assert virtual(all_of_them()).state == "completed"
    assert [e["moved_to"] for e in w.events("leader_revived")] == ["n1", "n2"]
    assert len([e for e in w.events("warning") if "keeper" in e["text"]]) == 1


def test_a_moved_leader_does_not_kill_its_own_step(world, virtual):
    """It ends the job after its end; a node that is missing then is ended with that. A leader on the batch host ends the step."""
    for lost in (("n0",), ()):
        w = world(checkpoint=SAVES, nodes=2, spare_nodes=2)
        w.allocation.means = SignalMeaning("nothing")
        w.step_s = 1.0

        async def both(w=w, lost=lost):
            await led_until(w, lambda: any(x.entered >= 13 for n in w.nodes for x in n.workers))

            async def dies():
                await w.until(lambda: any(x.entered >= 17 for n in w.nodes for x in n.workers))
                w.nodes[3].die()

            return await w.attempt_once(dies, revived=True, lost=lost)

        assert virtual(both()).state == "completed"
        assert (("end_step",) in w.allocation.said) is not bool(lost)


def test_where_too_few_hosts_are_left_the_run_is_requeued_without_the_lost_one(world, virtual):
    """At once: the new leader waits for nobody."""
    w = world(checkpoint=SAVES)
    w.allocation.means = SignalMeaning("nothing")

    async def both():
        await led_until(w, lambda: any(x.entered >= 13 for n in w.nodes for x in n.workers))
        return await w.attempt_once(revived=True, lost=("n0",))

    assert virtual(both()).state == "requeued"
    (moved,), (back,) = w.events("leader_revived"), w.events("requeued")
    assert back["t"] - moved["t"] < 8
    assert w.allocation.said[0][:2] == ("hand_back", ("n0",))


def test_a_moved_leader_waits_for_a_replacement_that_looks_for_it(world, virtual, monkeypatch):
    """The leader's own agent joins first; a replacement tries it every two seconds, and without it too few nodes would be left."""
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    w = world(checkpoint=SAVES, nodes=3, least_nodes=2, replace=True)
    w.step_s = 2.0
    w.allocation.means = SignalMeaning("nothing")
    killed(w, 7, 2)

    async def both():
        leading = asyncio.ensure_future(w.attempt_once())
        await w.until(lambda: w.events("replacement_asked"))
        w.another(3, "r0").join()
        await w.until(lambda: len(w.events("round_started")) == 3)
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)

        async def later():
            node = w.another(3, "r0")
            await asyncio.sleep(2.0)
            node.join(again=True)

        return await w.attempt_once(later, revived=True, lost=("n0", "n2"))

    assert virtual(both()).state == "completed"
    assert {r["host"] for r in w.events("round_started")[3]["ranks"]} == {"n1", "r0"}
    assert len(w.events("attempt_started")) == 1


def test_the_line_is_told_again_when_it_changes(world, virtual):
    """Three nodes, without the leader's own; one that is lost is in it no more when the next round begins."""
    w = kept(world, nodes=4, spare_nodes=1)
    w.keeper.refuses = "its host does not answer"
    killed(w, 12, 1)

    assert virtual(w.attempt_once()).state == "completed"
    lines = [m["line"] for m in w.nodes[4].heard if m["type"] == "welcome"]
    assert lines[-1] == [2, 3, 4]
    assert [1, 2, 3] in lines


def test_how_the_leader_ended_is_told(world, virtual):
    """What the batch script's log shows of it: a signal to its srun, or that it stood still."""
    w = kept(world)
    w.allocation.leader_ended = how = "An srun of the job received a signal (HUP or TERM), which ends its step"

    async def both():
        await led_until(w, lambda: any(x.entered >= 13 for n in w.nodes for x in n.workers))
        return await w.attempt_once(revived=True)

    assert virtual(both()).state == "completed"
    (decision,) = (d for d in w.events("decision") if d["evidence"] == "leader_gone")
    assert decision["reason"].startswith(f"{how}: the leader on n0 died and was started again;")
    assert decision["said"] == how


def test_leaders_that_die_without_progress_end_the_run(world, virtual):
    """`restart.max_restarts` counts them since the last checkpoint, as it does ranks."""
    w = kept(world, checkpoint={"interval_steps": 1000}, restart={"max_restarts": 2})

    async def all_of_them():
        await led_until(w, lambda: any(x.entered >= 13 for n in w.nodes for x in n.workers))
        for _ in range(2):
            again = asyncio.ensure_future(w.attempt_once(revived=True))
            await w.until(lambda: any(x.entered >= 13 for n in w.nodes for x in n.workers))
            again.cancel()
            await asyncio.gather(again, return_exceptions=True)
        return await w.attempt_once(revived=True)

    assert virtual(all_of_them()).state == "failed"
    assert "restart.max_restarts is used up" in w.outcome["reason"]


def test_an_agent_that_died_with_the_leader_is_started_again(world, virtual):
    """It does not join the new leader, which asks for it after some seconds."""
    w = kept(world)

    async def both():
        await led_until(w, lambda: any(x.entered >= 13 for n in w.nodes for x in n.workers))
        return await w.attempt_once(revived=True, absent=(1,))

    assert virtual(both()).state == "completed"
    assert [m["node"] for m in w.keeper.heard if m["type"] == "revive"] == [1]
    (revived,), (_, second) = w.events("leader_revived"), w.events("round_started")
    assert second["t"] - revived["t"] < 6


def test_a_host_that_died_with_the_leader_is_given_up(world, virtual):
    """It cannot be started again: the job is requeued without it, after seconds and not after init_timeout_min."""
    w = kept(world, keeper={"refuses": "its host does not answer"})

    async def both():
        await led_until(w, lambda: any(x.entered >= 13 for n in w.nodes for x in n.workers))
        return await w.attempt_once(revived=True, absent=(1,))

    assert virtual(both()).state == "requeued"
    (revived,), (back,) = w.events("leader_revived"), w.events("requeued")
    assert back["t"] - revived["t"] < 6
    assert w.allocation.said[0][:2] == ("hand_back", ("n1",))


def test_a_new_leader_learns_that_the_time_limit_is_near(world, virtual):
    """SLURM sends USR2 once: it may have come to the leader that died."""
    w = kept(world)

    async def both():
        await led_until(w, lambda: any(x.entered >= 13 for n in w.nodes for x in n.workers))
        w.allocation.means = SignalMeaning("time_limit", 100.0)
        return await w.attempt_once(revived=True)

    assert virtual(both()).state == "requeued"
    assert w.events("decision")[-1]["evidence"] == "time_limit"


def test_a_new_leader_hears_the_users_request(world, virtual):
    """`launcher cancel --save` was announced to the leader that died."""
    w = kept(world)

    async def both():
        await led_until(w, lambda: any(x.entered >= 13 for n in w.nodes for x in n.workers))
        w.paths.request.write_text("{}")
        return await w.attempt_once(revived=True)

    assert virtual(both()).state == "cancelled"


def test_hosts_that_the_dead_leader_had_excluded_stay_excluded(world, virtual):
    """A node that failed its checks is not used by the next leader either."""
    w = kept(world, preflight=True, spare_nodes=1)

    async def both():
        leading = asyncio.ensure_future(w.attempt_once())
        await w.until(lambda: bool(w.nodes))
        w.nodes[1].check_ok = False
        await w.until(lambda: any(x.entered >= 13 for n in w.nodes for x in n.workers))
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        return await w.attempt_once(revived=True)

    assert virtual(both()).state == "completed"
    assert {r["host"] for r in w.events("round_started")[-1]["ranks"]} == {"n0", "n2"}


def test_a_node_that_was_given_up_is_not_asked_for_by_the_next_leader(world, virtual):
    """Its agent could not be started again: the next leader begins on the spare without waiting for it, and asks for it no more."""
    w = kept(world, spare_nodes=1, keeper={"refuses": "its host does not answer"})
    killed(w, 12, 1)

    async def both():
        await led_until(w, lambda: any(x.entered >= 18 for n in w.nodes for x in n.workers))
        return await w.attempt_once(revived=True, absent=(1,))

    assert virtual(both()).state == "completed"
    (revived,), (*_, last) = w.events("leader_revived"), w.events("round_started")
    assert last["t"] - revived["t"] < 1
    assert [m["node"] for m in w.keeper.heard if m["type"] == "revive"] == [1]
    assert [e["hosts"] for e in w.events("excluded")] == [["n1"]]


@pytest.mark.parametrize("interval_steps", [1000, 10])
def test_losses_count_over_leaders(world, virtual, interval_steps):
    """A node that has lost its agent under the leader before is given up at the next loss, unless there was progress in between."""
    w = kept(world, checkpoint={"interval_steps": interval_steps})
    killed(w, 7, 1)

    async def both():
        await led_until(
            w, lambda: len(w.events("round_started")) == 2 and any(x.entered >= 13 for n in w.nodes for x in n.workers)
        )
        killed(w, 17, 1)
        return await w.attempt_once(revived=True)

    given_up = interval_steps == 1000
    assert virtual(both()).state == ("requeued" if given_up else "completed")
    assert [e["hosts"] for e in w.events("excluded")] == ([["n1"]] * 2 if given_up else [])


def test_an_agent_that_comes_back_by_itself_keeps_its_place(world, virtual):
    """Its connection broke: the order for another one is withdrawn, which would end it; nothing says that it was revived."""
    w = kept(world, keeper={"start_s": 1000.0})
    w.step_s = 0.5

    def breaks(worker):
        if not w.events("node_lost"):
            w.nodes[1].die()
            asyncio.get_running_loop().call_later(0.4, lambda: w.nodes[1].join(again=True))

    w.hooks[12] = [breaks]

    assert virtual(w.attempt_once()).state == "completed"
    assert [m["type"] for m in w.keeper.heard if m["type"] in ("revive", "withdraw")] == ["revive", "withdraw"]
    assert w.events("agent_revived") == []
    assert len(w.events("round_started")) == 2


def test_an_agent_that_comes_back_while_the_round_ends_is_used_again(world, virtual):
    """Another node takes seconds to end its workers: the one that is back has none, and costs neither itself nor the allocation."""
    w = kept(world, nodes=3, keeper={"start_s": 1000.0})
    w.step_s = 0.5

    def breaks(worker):
        if not w.events("node_lost"):
            loop, slow = asyncio.get_running_loop(), w.nodes[2]
            ends = slow.on_end
            slow.on_end = lambda m: loop.call_later(4.0, ends, m)
            w.nodes[1].die()
            loop.call_later(2.0, lambda: w.nodes[1].join(again=True))

    w.hooks[12] = [breaks]

    assert virtual(w.attempt_once()).state == "completed"
    assert w.events("excluded") == []
    (lost,), (_, second) = w.events("node_lost"), w.events("round_started")
    assert second["t"] - lost["t"] < 6


@pytest.mark.parametrize(("away_s", "state"), [(15.0, "completed"), (60.0, "requeued")])
def test_a_node_without_which_the_job_would_be_handed_back_is_awaited(world, virtual, away_s, state):
    """Its network is away: the keeper does not reach it, and its agent comes back by itself. Not longer than an agent may take to start."""
    w = kept(world, keeper={"refuses": "its host does not answer"}, checkpoint={"interval_steps": 1000})
    w.step_s = 0.5

    def away(worker):
        if not w.nodes[1].cut and len(w.events("round_started")) == 1:
            w.nodes[1].die(silently=True)
            asyncio.get_running_loop().call_later(away_s, back)

    def back():
        w.nodes[1].cut = False
        w.nodes[1].join(again=True)

    w.hooks[12] = [away]

    assert virtual(w.attempt_once()).state == state
    assert [e["why"] for e in w.events("revival_failed")] == ["its host does not answer"]
    (lost,), last = w.events("node_lost"), w.events("decision")[0]
    assert last["t"] - lost["t"] < 22
    assert [e["hosts"] for e in w.events("excluded")] == ([["n1"]] if state == "requeued" else [])


def test_an_agent_that_joins_twice_is_not_replaced(world, virtual):
    """Its old connection still stands where the new one comes: nobody else is to be started in its place."""
    w = kept(world)
    w.step_s = 0.5
    at = []

    def twice(worker):
        if not at:
            at.append(None)
            w.nodes[1].workers = []
            w.nodes[1].join(again=True)

    w.hooks[12] = [twice]

    assert virtual(w.attempt_once()).state == "completed"
    assert "revive" not in [m["type"] for m in w.keeper.heard]


def test_a_stale_refusal_counts_for_nothing(world, virtual):
    """What the keeper says of an older order crosses the newer one on its way."""
    w = kept(world, keeper={"start_s": 3.0})
    killed(w, 12, 1)

    async def script():
        await w.until(lambda: any(m["type"] == "revive" for m in w.keeper.heard))
        w.keeper.link.up({"type": "not_revived", "node": 1, "order": 0, "why": "its step ended with exit code 1"})

    assert virtual(w.attempt_once(script)).state == "completed"
    assert w.events("revival_failed") == []


def test_slow_starts_are_given_their_time(world, virtual):
    """Setup lines or an image took the first leader 30 s: an agent that is started again may take as long."""
    w = kept(world, keeper={"start_s": 50.0, "slow_s": 30.0})
    killed(w, 12, 1)

    assert virtual(w.attempt_once()).state == "completed"
    welcomes = [m["patience_s"] for m in w.nodes[1].heard if m["type"] == "welcome"]
    assert welcomes[-1] == 120.0


def test_a_keeper_that_says_nothing_is_done_without(world, virtual):
    """It stands still: agents learn that nobody would take the leader's place, and a dead agent costs the job as ever."""
    w = kept(world)
    w.step_s = 1.0
    w.keeper.beats = False
    killed(w, 20, 1)

    assert virtual(w.attempt_once()).state == "requeued"
    told = [m.get("kept", False) for m in w.nodes[1].heard if m["type"] == "welcome"]
    assert told[0]
    assert not told[-1]
    assert "revive" not in [m["type"] for m in w.keeper.heard]


@pytest.mark.parametrize("back_after_s", [3.0, None])
def test_a_lost_keeper_is_told_where_none_comes_back(world, virtual, back_after_s):
    """Ten seconds later, once. The batch script starts another one: then nothing is told, and agents are started again as before.

    That one did not see the first leader start: the leader tells it how long that took.
    """
    w = kept(world, keeper={"slow_s": 30.0, "start_s": 50.0})
    w.step_s = 1.0
    killed(w, 30, 1)

    async def script():
        await w.until(lambda: any(x.entered >= 12 for n in w.nodes for x in n.workers))
        w.keeper.stop()
        w.keeper.link.hang_up()
        if back_after_s is not None:
            await asyncio.sleep(back_after_s)
            w.keeper.slow_s = 0.1
            w.keeper.join()

    assert virtual(w.attempt_once(script)).state == ("requeued" if back_after_s is None else "completed")
    warned = [e["text"] for e in w.events("warning") if "keeper" in e["text"]]
    assert len(warned) == (back_after_s is None)
    assert all("has been gone for 10 s" in text for text in warned)
    assert len(w.events("agent_revived")) == (back_after_s is not None)
    assert [m["start_s"] for m in w.keeper.heard if m["type"] == "keeper_welcome"][1:] == [30.0] * (
        back_after_s is not None
    )


def test_a_leader_that_died_while_nodes_started_waits_for_them_as_ever(world, virtual):
    """They may be in their setup lines: nothing has been together that could come back in seconds."""
    w = kept(world)

    async def both():
        leading = asyncio.ensure_future(w.attempt_once(absent=(1,)))
        await w.until(lambda: bool(w.events("node_joined")))
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)

        async def late():
            await asyncio.sleep(40)
            w.nodes[1].join()

        return await w.attempt_once(late, revived=True, absent=(1,))

    assert virtual(both()).state == "completed"
    assert "revive" not in [m["type"] for m in w.keeper.heard]


def test_a_leader_whose_place_was_taken_sends_nobody_away(world, virtual):
    """It finds a newer claim in its attempt: its agents look for the newer leader, and the keeper keeps that."""
    w = kept(world)
    w.step_s = 1.0

    async def script():
        await w.until(lambda: any(x.entered >= 12 for n in w.nodes for x in n.workers))
        claims.claim_takeover(w.paths, life="local.0")

    assert virtual(w.attempt_once(script)).state == "requeued"
    assert "shutdown" not in [m["type"] for m in w.keeper.heard]
    assert all("shutdown" not in [m["type"] for m in node.heard] for node in w.nodes)
    assert w.events("attempt_ended") == w.events("requeued") == []


def test_orders_of_a_dead_leader_are_no_orders_of_the_next(world, virtual):
    """The keeper may tell the new leader of a step that the old one had ordered: it is not the one that is awaited."""
    w = kept(world, keeper={"start_s": 3.0})
    orders = lambda: [m["order"] for m in w.keeper.heard if m["type"] == "revive"]  # noqa: E731

    async def both():
        killed(w, 7, 1)
        await led_until(w, lambda: any(x.entered >= 13 for n in w.nodes for x in n.workers))
        killed(w, 17, 1)

        async def stale():
            await w.until(lambda: len(orders()) == 2)
            w.keeper.link.up({"type": "not_revived", "node": 1, "order": orders()[0], "why": "its step was killed"})

        return await w.attempt_once(stale, revived=True)

    assert virtual(both()).state == "completed"
    assert orders()[1] > orders()[0]
    assert w.events("revival_failed") == []
