"""Agents that lose their leader while a keeper is there wait for the next one, with their fork server."""

from __future__ import annotations

import signal
from typing import Any

from test_agent import start

from launcher.node.checkpoints import claims


async def lost(w: Any, *, patience_s: float = 60.0) -> Any:
    """An agent that trained and whose leader has gone; nobody takes its place."""
    w.leader.kept, w.leader.patience_s = True, patience_s
    agent = await start(w)
    w.leader.round(0, 2, "family")
    await w.leader.heard("worker", count=2)
    w.stop()
    w.leader.links[0].close()
    return agent


def test_it_ends_its_workers_and_joins_the_next_leader(world: Any) -> None:
    """Nothing of the round is left; its hello names the attempt, and the next round is forked from the same fork server."""

    async def body(w: Any) -> None:
        w.leader.kept = True
        agent = await start(w)
        server = w.fork_server(agent)
        w.leader.round(0, 2, "family")
        await w.leader.heard("worker", count=2)
        w.leader.links[0].close()

        first, second = await w.leader.heard("hello", count=2)
        assert (first["attempt"], second["attempt"]) == (None, 0)
        assert second["at"] - w.leader.all("worker")[-1]["at"] < w.leader.patience_s / 2
        await w.leader.until(lambda: len(w.left()) == 2)
        assert w.fork_server(agent) == server
        w.leader.round(1, 2, "finish")
        assert all(m["exit_code"] == 0 for m in await w.leader.heard("worker_exit", count=2, round=1))
        w.leader.tell("shutdown")
        assert await w.gone(agent) == 0

    world(body)


def test_without_a_keeper_it_leaves(world: Any) -> None:
    """Nobody would take the leader's place: the agent's exit is what has the job handed back."""

    async def body(w: Any) -> None:
        agent = await start(w)
        w.leader.links[0].close()
        assert await w.gone(agent) == 15
        assert "this agent ends its workers and exits" in w.agent_log()

    world(body)


def test_it_waits_for_the_next_leader_for_a_while(world: Any) -> None:
    """The keeper could not start one: the agent leaves in the end, and its workers have long ended."""

    async def body(w: Any) -> None:
        claims.claim_attempt(w.paths, life="test.0")
        agent = await lost(w, patience_s=1.0)
        assert await w.gone(agent) == 15
        assert "waits for another leader" in w.agent_log()
        assert "The leader has begun and does not answer" in w.agent_log()

    world(body)


def test_term_ends_the_wait(world: Any) -> None:
    """SLURM ends the job while nobody leads it: no time is to be lost. Without TERM it would wait for hours."""

    async def body(w: Any) -> None:
        agent = await lost(w, patience_s=10_000.0)
        await w.leader.until(lambda: "waits for another leader" in w.agent_log())
        agent.send_signal(signal.SIGTERM)
        assert await w.gone(agent) == 15
        assert "received TERM and the leader is gone" in w.agent_log()

    world(body)
