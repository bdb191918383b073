"""The leader's own host loses its network for a while: the nodes that it does not hear are well, and none of them is to blame."""

from __future__ import annotations

import asyncio

import pytest

from launcher.node.allocation.allocation import SignalMeaning


def lonely(world, away_s, *, steps, absent=()):
    """A world whose first node hears none of the others for ``away_s``, at each of these ``steps``; so does its keeper."""
    w = world(nodes=4, checkpoint={"interval_steps": 1000}, site={"kill_wait_s": 30})
    w.keep(refuses="its host does not answer")
    w.allocation.means = SignalMeaning("nothing")
    w.step_s = 0.5
    for step in steps:
        left = [step]
        w.hooks[step] = [lambda worker, left=left: left and (left.pop(), cut(w, away_s, absent))]
    return w


def cut(w, away_s, absent):
    """Agents that the leader does not answer end their workers and look for it until they reach it."""
    for node in w.nodes[1:]:
        node.die(silently=True)
        if node.index not in absent:
            asyncio.get_running_loop().call_later(away_s, back, node)


def back(node):
    """It reaches the leader again."""
    node.cut = False
    node.join(again=True)


def test_nodes_that_were_not_heard_for_seconds_train_on(world, virtual):
    """Twice without progress in between: one allocation, nobody excluded, also not by a leader that is started again."""
    w = lonely(world, 15.0, steps=(12, 17))
    assert virtual(w.attempt_once()).state == "completed"
    assert [e["why"] for e in w.events("node_lost")] == ["cut_off"] * 6
    assert w.events("excluded", "revival_failed") == []
    assert [d["action"] for d in w.events("decision")] == ["new_round", "new_round", "complete"]


def test_a_leader_that_is_started_again_does_not_count_it_either(world, virtual):
    """It reads in the history which losses were of all nodes together."""
    w = lonely(world, 15.0, steps=(12, 17))

    async def both():
        leading = asyncio.ensure_future(w.attempt_once())
        await w.until(lambda: len(w.events("round_started")) == 2)
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        return await w.attempt_once(revived=True)

    assert virtual(both()).state == "completed"
    assert w.events("excluded") == []


@pytest.mark.parametrize("absent", [(), (3,)])
def test_nodes_that_are_not_heard_for_long_are_not_excluded(world, virtual, absent):
    """Handed back, and the next attempt may get every host. Also where one of them comes not back."""
    w = lonely(world, 60.0 if not absent else 15.0, steps=(12,), absent=absent)
    assert virtual(w.attempt_once()).state == "requeued"
    assert ("hand_back", (), 0.0) in w.allocation.said
    assert w.events("excluded") == []
    assert "the leader's host may be cut off" in w.events("decision")[-1]["reason"]


def test_where_one_other_node_answers_the_silent_ones_are_to_blame(world, virtual):
    """The leader's own network is well."""
    w = lonely(world, 60.0, steps=())
    w.hooks[12] = [lambda worker: [w.nodes[index].die(silently=True) for index in (1, 2)]]
    assert virtual(w.attempt_once()).state == "requeued"
    assert ("hand_back", ("n1", "n2"), 0.0) in w.allocation.said
    assert [e["why"] for e in w.events("node_lost")] == ["silent"] * 2
