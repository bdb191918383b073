"""Rounds that end while their workers are still being started. The leader uses a node no more that takes 15 s for that."""

from __future__ import annotations

import os
import signal
from typing import Any

from test_agent import start

SLOW = """
import pathlib, time
from launcher.node.agent import logs
was = logs.open_log
def late(*words, **how):
    pathlib.Path({asked!r}).touch()
    while not pathlib.Path({there!r}).exists():
        time.sleep(0.05)
    return was(*words, **how)
logs.open_log = late
"""


def test_a_disk_that_does_not_answer_keeps_no_round_from_its_end(world: Any) -> None:
    """The logs cannot be opened: nothing is forked then, also not when they can, and the next round begins as ever."""

    async def body(w: Any) -> None:
        asked, there = w.paths.root / "asked", w.paths.root / "the disk answers"
        await start(w, tweak=f"exec({SLOW.format(asked=str(asked), there=str(there))!r})")
        w.leader.round(0, 2, "wait")
        await w.leader.until(asked.exists)
        w.leader.tell("end", round=0)
        await w.leader.heard("cleared", round=0)
        there.touch()
        w.leader.round(1, 2, "finish")
        await w.leader.heard("worker_exit", count=2, round=1)
        assert w.leader.all("worker_up", round=0) == []
        assert w.leader.all("worker_exit", round=0) == []

    world(body)


def test_a_stopped_fork_server_keeps_no_round_from_its_end(world: Any) -> None:
    """It has been asked for workers and says nothing: it is killed, and another one forks the next round."""

    async def body(w: Any) -> None:
        agent = await start(w)
        w.leader.round(0, 2, "finish")
        await w.leader.heard("worker_exit", count=2, round=0)
        stopped = w.fork_server(agent)
        os.kill(stopped, signal.SIGSTOP)
        w.leader.round(1, 2, "wait")
        await w.leader.heard("alive", count=len(w.leader.all("alive")) + 1)
        w.leader.tell("end", round=1)
        await w.leader.heard("cleared", round=1)
        w.leader.round(2, 2, "finish")
        await w.leader.heard("worker_exit", count=2, round=2)
        assert w.fork_server(agent) != stopped

    world(body)
