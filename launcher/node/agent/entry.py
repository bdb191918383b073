"""Runs the agent of a node, and on the first one the leader beside it, in one event loop."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from launcher.errors import LauncherError, ProtocolError
from launcher.hosts import expand_hosts
from launcher.node.agent.agent import PRELOAD, Agent
from launcher.node.agent.description import gloo_interface
from launcher.node.agent.environment import base_environment
from launcher.node.agent.leader_search import LeaderSearch
from launcher.node.agent.leading import lead_and_obey
from launcher.node.agent.membership import Doors, names_with, node_index, node_names
from launcher.node.agent.predecessor import end_predecessor
from launcher.node.agent.read_run import read_run
from launcher.node.agent.reruns import Reruns
from launcher.node.allocation.allocation import Allocation
from launcher.node.forkserver.client import ForkServer
from launcher.node.leader.leader import Leader
from launcher.node.wire import connect, connection
from launcher.run.batch import LAST_WORDS, LOG
from launcher.run.own_folder import require_only_own_writers
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec


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
        spec, secret, passed = read_run(paths)
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
        print(f"{LAST_WORDS}{error}", file=sys.stderr)
        return error.exit_code
    before = dict(os.environ)  # jobs that are submitted from here get this: SLURM must not see what is passed by name
    os.environ.update({**spec.variables, **passed})  # the leader's trackers and notifications read theirs here
    life, _, leads = joins or (connection.allocation_life(os.environ), "", 0)
    doors = Doors(spec, secret, life, names, index)
    environ = base_environment(os.environ, spec, passed, gloo_interface=gloo_interface(spec, doors.others))
    loop = asyncio.new_event_loop()  # not asyncio.run: that waits for threads, and one may be stuck in a slow disk
    asyncio.set_event_loop(loop)
    search = LeaderSearch(spec, paths, doors, leader=leads, joins=joins is not None)
    agent = Agent(
        spec, paths, node=index, host=names[index], search=search, server=ForkServer(preload=PRELOAD, environ=environ)
    )
    if spec.hold:
        agent.reruns = Reruns(spec, paths, agent.server, before, agent.tell, Agent, doors.others)
    if index == 0:
        leader = Leader(spec, paths, names[0], names, _allocation_of(spec, paths, before), revived=again is not None)
        return loop.run_until_complete(lead_and_obey(leader, agent.run(), doors)).exit_code
    code = loop.run_until_complete(_obey_or_lead(agent, search, doors, before))
    if search.lost is not None and spec.batch == "slurm" and os.environ.get("SLURM_JOB_ID"):
        _stand_in(spec, paths, search, before)
    return code


def _allocation_of(spec: RunSpec, paths: RunPaths, environ: Mapping[str, str]) -> Allocation:
    if spec.batch == "slurm" and environ.get("SLURM_JOB_ID"):
        from launcher.node.allocation.slurm_allocation import SlurmAllocation

        return SlurmAllocation(spec, paths, environ)
    return Allocation(paths)


async def _obey_or_lead(agent: Agent, search: LeaderSearch, doors: Doors, environ: Mapping[str, str]) -> int:
    """Run the agent of another node than the first; the leader beside it, too, once that is on this node.

    ``environ``: of this process, without what the run's workers get besides.
    """
    obeying = asyncio.ensure_future(agent.run())
    to_lead = asyncio.ensure_future(search.leads.wait())
    await asyncio.wait([obeying, to_lead], return_when=asyncio.FIRST_COMPLETED)
    to_lead.cancel()
    if not search.leads.is_set():
        return obeying.result()
    from launcher.node.allocation.leaderless import LEAD_S, conclude
    from launcher.node.allocation.slurm_allocation import SlurmAllocation

    spec, paths = agent.spec, agent.paths
    allocation = SlurmAllocation(spec, paths, environ, least_lead_s=LEAD_S)
    require_only_own_writers(paths)
    lost = [name for name in doors.names if search.end is not None and name not in search.end.left]
    leader = Leader(spec, paths, agent.host, doors.names, allocation, revived=True, lost=lost)
    ending = await lead_and_obey(leader, obeying, doors)
    if not ending.stale:
        await asyncio.to_thread(conclude, spec, paths, allocation, doors.names[0])
    return ending.exit_code


def _stand_in(spec: RunSpec, paths: RunPaths, search: LeaderSearch, environ: Mapping[str, str]) -> None:
    """Hand the job back for a leader that is gone, unless another agent does. ``environ`` as in `_obey_or_lead`."""
    from launcher.node.allocation.leaderless import adopt

    door, place = search.door, search.place
    if place is None or (search.decided and search.end is None):
        return
    leads = lambda: asyncio.run(connect.answers(door.address, door.ports, door.key))  # noqa: E731
    try:
        adopt(
            spec,
            paths,
            environ,
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
        print(f"{LAST_WORDS}the run directory cannot be read here: {error}", file=sys.stderr)
