"""Runs the leader beside the agent of its node, in one event loop."""

from __future__ import annotations

import asyncio
import resource
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from launcher.errors import LauncherError, ProtocolError
from launcher.node.agent.membership import Doors
from launcher.node.leader.finish import Ending
from launcher.node.wire import connection
from launcher.node.wire.keeper_messages import KeeperHello
from launcher.node.wire.messages import AgentHello, Hub, Link, Shutdown
from launcher.run import open_files
from launcher.run.batch import LAST_WORDS

_OWN_AGENT_S = 30.0
"""The agent of the leader's node was told to leave before the leader ended; it gets so long to do it."""
_DISMISS_S = 120.0


async def lead_and_obey(leader: Any, agent: Awaitable[int], doors: Doors) -> Ending:
    """Run the leader beside the ``agent`` of its node; the leader ends last, and its end is returned.

    An agent that fails ends the leader, as if their process had died: the leader would wait for it for half an hour.
    """
    open_files.raise_limit()
    door, names = doors.of(doors.node), doors.names
    serve = connection.server(door.key, door.ports, peers=len(names), local=doors.spec.batch == "local")
    served = False

    async def serving(hub: Hub) -> Callable[[], None]:
        nonlocal served
        served = True
        host = names[doors.node]
        if (files_allowed := resource.getrlimit(resource.RLIMIT_NOFILE)[0]) < len(names) + connection.OWN_FILES:
            raise ProtocolError(
                f"A process on {host} may open {files_allowed:,} files (ulimit -Hn), too few to lead {len(names):,} nodes."
            )
        return await serve(hub)

    leading: asyncio.Task[Ending] = asyncio.ensure_future(leader.run(serving))
    obeying = asyncio.ensure_future(agent)
    try:
        await asyncio.wait({leading, obeying}, return_when=asyncio.FIRST_COMPLETED)
        if leading.done() or obeying.exception() is None:
            await asyncio.wait({leading})
            if leading.exception() is None and served:
                await asyncio.wait({obeying}, timeout=_OWN_AGENT_S)
    finally:
        obeying.cancel()
        leading.cancel()  # it has ended, unless this function is cancelled
        await asyncio.gather(obeying, leading, return_exceptions=True)
    who, error = ("agent", obeying.exception()) if leading.cancelled() else ("leader", leading.exception())
    if error is not None:
        if not isinstance(error, LauncherError):
            traceback.print_exception(error)
        own_job = doors.spec.held_by is None  # a rerun's leader says nothing of its hold, whose log this is
        print(f"{LAST_WORDS if own_job else ''}the {who} failed: {error}", file=sys.stderr, flush=True)
        code = error.exit_code if isinstance(error, LauncherError) else 1
        return Ending("failed", str(error), code)
    ending = leading.result()
    print(f"{ending.state}: {ending.reason}", file=sys.stderr, flush=True)
    if not served and len(names) > 1:
        await Dismissal(len(names) - 1).run(serve)
    return ending


class Dismissal(Hub):
    """Tells every other agent, and the keeper, to leave when there is nothing to lead: they would wait for a leader."""

    def __init__(self, others: int) -> None:
        self._others = others
        self._agents: set[Link] = set()
        self._all = asyncio.Event()

    async def run(self, serve: connection.Serve) -> None:
        """Answer until every agent was told to leave, at most two minutes."""
        try:
            stop = await serve(self)
            try:
                await asyncio.wait_for(self._all.wait(), _DISMISS_S)
            finally:
                stop()
        except (asyncio.TimeoutError, ProtocolError):
            pass

    def received(self, link: Link, message: dict[str, Any]) -> None:
        """See `Hub`."""
        if message["type"] in (AgentHello.type, KeeperHello.type):
            link.send(Shutdown())
        if message["type"] == AgentHello.type:
            self._agents.add(link)

    def closed(self, link: Link, why: str) -> None:
        """See `Hub`."""
        self._others -= link in self._agents
        if self._others <= 0:
            self._all.set()
