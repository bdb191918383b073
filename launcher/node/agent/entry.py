"""Runs the agent of a node, and on the first one the leader beside it, in one event loop."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from launcher.errors import LauncherError, ProtocolError, RunDirError
from launcher.node.agent.agent import Agent
from launcher.node.agent.description import gloo_interface
from launcher.node.agent.environment import base_environment
from launcher.node.agent.membership import leader_address, node_index, node_names
from launcher.node.agent.predecessor import end_predecessor
from launcher.node.leader.finish import Ending
from launcher.node.leader.leader import Leader
from launcher.node.wire import connection
from launcher.node.wire.messages import AgentHello, Hub, KeeperHello, Link, Shutdown
from launcher.node.wire.proofs import LifeKey
from launcher.opening import read_whole
from launcher.run.asking import exists, load_object, patiently
from launcher.run.batch import LOG
from launcher.run.own_folder import require_only_own_writers
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.run.units import is_secret
from launcher.slurm.hosts import expand_hosts

_OWN_AGENT_S = 30.0
"""The first node's agent was told to leave before the leader ended; it gets so long to do it."""
_DISMISS_S = 120.0
_MOST_FILES = 65536
"""More than any allocation has nodes; a hard limit may be a billion, and some programs close every number up to the limit."""


def run_agent(run_dir: Path, *, node: int | None = None, again: str | None = None, ends: str = "") -> int:
    """Run the agent of ``node`` (unset: SLURM or submitit says) to its end; returns the process's exit code.

    ``again``: the agent takes a dead one's place, in a step of its own; SLURM's list of the allocation's nodes. ``ends``: the
    process id and the mark (`launcher.run.processes.mark_of`) of the one that it replaces, with a comma, where they are known.
    """
    try:
        paths = RunPaths(run_dir.absolute())
        spec, secret, passed = _read(paths)
        index = node_index(spec) if node is None else node
        names = node_names(spec) if again is None else expand_hosts(again)
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
    key = LifeKey(secret, connection.allocation_life(os.environ), names[0])
    ports = key.candidate_ports(spec.port_range)
    environ = base_environment(os.environ, spec, passed, gloo_interface=gloo_interface(spec))

    agent = Agent(
        spec,
        paths,
        node=index,
        host=names[index],
        leader_host=leader_address(spec, names, index),
        key=key,
        environ=environ,
    )
    loop = asyncio.new_event_loop()  # not asyncio.run: that waits for threads, and one may be stuck in a slow disk
    asyncio.set_event_loop(loop)
    if index == 0:
        _raise_file_limit()
        serve = connection.server(key, ports, peers=len(names), local=spec.batch == "local")
        leader = Leader(spec, paths, host=names[0], node_names=names, revived=again is not None)
        return loop.run_until_complete(lead_and_obey(leader, agent, serve, others=len(names) - 1))
    code = loop.run_until_complete(agent.run())
    if agent.leader_lost is not None and spec.batch == "slurm" and os.environ.get("SLURM_JOB_ID"):
        answers = lambda: loop.run_until_complete(connection.answers(names[0], ports, key))  # noqa: E731
        _stand_in(agent, names[0], ports, answers)
    return code


def _stand_in(agent: Agent, leader_host: str, ports: Sequence[int], leads: Callable[[], bool]) -> None:
    """Hand the job back for a leader that is gone, unless another agent does."""
    from launcher.node.allocation.leaderless import adopt

    silent, told = agent.leader_lost == "silent", agent.told_to_end
    try:
        adopt(
            agent.spec, agent.paths, place=agent.node, leader_host=leader_host, ports=ports, silent=silent, leads=leads, told=told
        )  # fmt: skip
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


async def lead_and_obey(leader: Any, agent: Agent, serve: connection.Serve, *, others: int) -> int:
    """Run the leader and the agent of the first node; the leader ends last, and its exit code is returned."""
    served = False

    async def serving(hub: Hub) -> Callable[[], None]:
        nonlocal served
        served = True
        return await serve(hub)

    leading: asyncio.Task[Ending] = asyncio.ensure_future(leader.run(serving))
    obeying = asyncio.ensure_future(agent.run())
    await asyncio.wait({leading})
    if leading.exception() is None and served:
        await asyncio.wait({obeying}, timeout=_OWN_AGENT_S)
    obeying.cancel()
    await asyncio.gather(obeying, return_exceptions=True)
    if (error := leading.exception()) is not None:
        if not isinstance(error, LauncherError):
            traceback.print_exception(error)
        print(f"error: the leader failed: {error}", file=sys.stderr, flush=True)
        return error.exit_code if isinstance(error, LauncherError) else 1
    ending = leading.result()
    print(f"{ending.state}: {ending.reason}", file=sys.stderr, flush=True)
    if not served and others:
        await Dismissal(others).run(serve)
    return ending.exit_code


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
