"""Runs the agent of a node, and on the first one the leader beside it, in one event loop."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from launcher.errors import LauncherError, ProtocolError, RunDirError
from launcher.node.agent.agent import Agent
from launcher.node.agent.description import gloo_interface
from launcher.node.agent.environment import base_environment
from launcher.node.agent.leader_search import LeaderSearch
from launcher.node.agent.membership import Doors, names_with, node_index, node_names
from launcher.node.agent.predecessor import end_predecessor
from launcher.node.leader.finish import Ending
from launcher.node.leader.leader import Leader
from launcher.node.wire import connection
from launcher.node.wire.messages import AgentHello, Hub, KeeperHello, Link, Shutdown
from launcher.opening import read_whole
from launcher.run.asking import exists, load_object, patiently
from launcher.run.batch import LOG
from launcher.run.own_folder import require_only_own_writers
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.run.units import is_secret
from launcher.slurm.hosts import expand_hosts

_OWN_AGENT_S = 30.0
"""The agent of the leader's node was told to leave before the leader ended; it gets so long to do it."""
_DISMISS_S = 120.0
_MOST_FILES = 65536
"""More than any allocation has nodes; a hard limit may be a billion, and some programs close every number up to the limit."""


def run_agent(
    run_dir: Path,
    *,
    node: int | None = None,
    again: str | None = None,
    ends: str = "",
    joins: tuple[str, str, int] | None = None,
) -> int:
    """Run the agent of ``node`` (unset: SLURM or submitit says) to its end; returns the process's exit code.

    ``again``: the agent takes a dead one's place, in a step of its own; SLURM's list of the allocation's nodes. ``ends``: the
    process id and the mark (`launcher.run.processes.mark_of`) of the one that it replaces, with a comma, where they are known.
    ``joins``: this agent's job replaces a node of the run's job. Given are the life of the run's job, the list of its nodes, and the
    index of the node whose agent leads.
    """
    try:
        paths = RunPaths(run_dir.absolute())
        spec, secret, passed = _read(paths)
        index = node_index(spec) if node is None else node
        names = node_names(spec) if again is None else expand_hosts(again)
        if joins is not None:
            names = names_with(expand_hosts(joins[1]), index, names[0])
            os.environ["SLURM_NNODES"] = str(len(names))
        if again is not None:
            end_predecessor(paths, os.environ, ends)
            os.environ["SLURM_NNODES"] = str(len(names))  # the step's own are one
            os.environ.pop(LOG, None)
        if index == 0:
            require_only_own_writers(paths)
        if not 0 <= index < len(names):
            raise ProtocolError(f"Node {index} does not belong to this run of {len(names)} nodes.")
    except LauncherError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    os.environ.update({**spec.variables, **passed})  # the leader's trackers and notifications read theirs here
    life, _, leads = joins or (connection.allocation_life(os.environ), "", 0)
    doors = Doors(spec, secret, life, names, index)
    environ = base_environment(os.environ, spec, passed, gloo_interface=gloo_interface(spec))
    loop = asyncio.new_event_loop()  # not asyncio.run: that waits for threads, and one may be stuck in a slow disk
    asyncio.set_event_loop(loop)
    search = LeaderSearch(spec, paths, doors, leader=leads, joins=joins is not None)
    agent = Agent(spec, paths, node=index, host=names[index], search=search, environ=environ)
    if index == 0:
        leader = Leader(spec, paths, host=names[0], node_names=names, revived=again is not None)
        return loop.run_until_complete(lead_and_obey(leader, agent.run(), doors)).exit_code
    code = loop.run_until_complete(_obey_or_lead(agent, search, doors))
    if search.lost is not None and spec.batch == "slurm" and os.environ.get("SLURM_JOB_ID"):
        _stand_in(spec, paths, search)
    return code


async def _obey_or_lead(agent: Agent, search: LeaderSearch, doors: Doors) -> int:
    """Run the agent of another node than the first; the leader beside it, too, once that is on this node."""
    obeying = asyncio.ensure_future(agent.run())
    to_lead = asyncio.ensure_future(search.leads.wait())
    await asyncio.wait([obeying, to_lead], return_when=asyncio.FIRST_COMPLETED)
    to_lead.cancel()
    if not search.leads.is_set():
        return obeying.result()
    from launcher.node.allocation.leaderless import LEAD_S, conclude
    from launcher.node.allocation.slurm_allocation import SlurmAllocation

    spec, paths = agent.spec, agent.paths
    allocation = SlurmAllocation(spec, paths, least_lead_s=LEAD_S)
    require_only_own_writers(paths)
    lost = [name for name in doors.names if search.end is not None and name not in search.end.left]
    leader = Leader(spec, paths, agent.host, doors.names, allocation, revived=True, lost=lost)
    ending = await lead_and_obey(leader, obeying, doors)
    if not ending.stale:
        await asyncio.to_thread(conclude, spec, paths, allocation, doors.names[0])
    return ending.exit_code


def _stand_in(spec: RunSpec, paths: RunPaths, search: LeaderSearch) -> None:
    """Hand the job back for a leader that is gone, unless another agent does."""
    from launcher.node.allocation.leaderless import adopt

    door, place = search.door, search.place
    if place is None or (search.decided and search.end is None):
        return
    leads = lambda: asyncio.run(connection.answers(door.address, door.ports, door.key))  # noqa: E731
    try:
        adopt(
            spec,
            paths,
            place=place,
            leader_host=door.host,
            batch_host=search.batch_host,
            ports=door.ports,
            silent=search.lost == "silent",
            leads=leads,
            told=search.term_at is not None,
            end=search.end,
        )
    except OSError as error:  # how the run ended is not known here
        print(f"error: the run directory cannot be read here: {error}", file=sys.stderr)


def _raise_file_limit() -> None:
    """Allow this process, which leads, as many open files as it may have: each agent's connection is one.

    The fork server goes back to the limit that was (`ForkServer`): a program that expects 1,024 may use select(2).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _read(paths: RunPaths) -> tuple[RunSpec, str, dict[str, Any]]:
    def read() -> tuple[RunSpec, str, dict[str, Any]]:
        if not exists(paths.spec, paths.root):
            raise ValueError(f"it holds no {paths.spec.name}")
        secret = read_whole(paths.secret).decode().strip()
        if not is_secret(secret):
            raise ValueError(f"{paths.secret.name} holds no secret: resubmit the run")
        return RunSpec.read(paths.spec), secret, load_object(paths.passed, paths.root) or {}

    try:
        return patiently(read, paths.root)
    except (OSError, ValueError) as error:
        raise RunDirError(f"The run directory {paths.root} cannot be read here: {error}.") from None


async def lead_and_obey(leader: Any, agent: Awaitable[int], doors: Doors) -> Ending:
    """Run the leader beside the ``agent`` of its node; the leader ends last, and its end is returned."""
    _raise_file_limit()
    door, names = doors.of(doors.node), doors.names
    serve = connection.server(door.key, door.ports, peers=len(names), local=doors.spec.batch == "local")
    served = False

    async def serving(hub: Hub) -> Callable[[], None]:
        nonlocal served
        served = True
        return await serve(hub)

    leading: asyncio.Task[Ending] = asyncio.ensure_future(leader.run(serving))
    obeying = asyncio.ensure_future(agent)
    await asyncio.wait({leading})
    if leading.exception() is None and served:
        await asyncio.wait({obeying}, timeout=_OWN_AGENT_S)
    obeying.cancel()
    await asyncio.gather(obeying, return_exceptions=True)
    if (error := leading.exception()) is not None:
        if not isinstance(error, LauncherError):
            traceback.print_exception(error)
        print(f"error: the leader failed: {error}", file=sys.stderr, flush=True)
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
