"""What agents do when their leader is gone and nobody has told them to leave.

Measured on 22.05: with ``--no-kill`` a job whose batch host dies is *not* requeued. SLURM drops the host from the job, and
the job stays RUNNING, with no batch script, until its time limit. So the first few other agents stay a moment and hand the
job back themselves; where the batch script still runs, its teardown finds that done.

When a host does not answer, the agents wait until SLURM has dropped it: requeued earlier, the job would stay COMPLETING
until then, and start with SLURM's full delay (121 s) after that. A host that still answers connections is alive, and only
its leader stands still (SIGSTOP, a dead file system): SLURM would never drop it.

A leader that answers is alive and leads: this host was cut off for a while, and the others train on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from launcher.node.allocation.early_exits import hosts_in
from launcher.node.allocation.reach import host_answers
from launcher.node.allocation.slurm_allocation import SlurmAllocation
from launcher.node.allocation.teardown import act
from launcher.node.wire.messages import SILENCE_S
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.slurm.jobs import JobFacts
from launcher.slurm.meaning import meaning_of

LEAD_S = 25
"""Lead of StartTime when the first host is dead: step ends are told along a tree whose root it was, and SLURM took 11 s
(2 of 2) after the last process to see the end; a StartTime before that would be replaced by the full delay."""

_MOST_AGENTS = 3
"""So many agents stay: one acts, the others replace it if it fails."""
_DROP_S = 660.0
"""Twice SlurmdTimeout, which is 300 s by default, and some more."""
_FROZEN_S = 20.0
"""A leader on a live host may come back for so long; what it decides then is valid."""
_ENDING_S = 10
"""SLURM takes so long, beyond KillWait, to end a process that stands still and to see that."""
_POLL_S = 2.0
_TURN_S = 5.0
_WATCH_S = 0.5
_LAST_S = 2.0
"""The other agents have seen it and left by then."""
_UNHEARD_S = 60.0


def adopt(
    spec: RunSpec,
    paths: RunPaths,
    *,
    place: int,
    leader_host: str,
    ports: Sequence[int],
    silent: bool,
    leads: Callable[[], bool],
    told: bool = False,
) -> None:
    """Hand the job back unless somebody else has. ``place`` is this node's index, from 1; the leader is on one of ``ports``.

    ``silent``: the leader stopped answering; otherwise its connection closed. ``leads`` says whether it answers. Without an
    answer from SLURM nothing is done: this host may be the one that is cut off. ``told``: TERM came, which ends a job that SLURM wants
    nothing of.
    """
    if place > _MOST_AGENTS:
        return
    allocation = SlurmAllocation(spec, paths, least_lead_s=LEAD_S if silent else 0)
    said = _awaited(allocation, leader_host, ports, leads) if silent else ""
    if said is None:
        return
    turn = time.monotonic() + _TURN_S * (place - 1)
    while True:
        facts = allocation.facts()
        if facts is None or not (_ours(facts, allocation) or _script_gone(facts, allocation)):
            return  # an agent that stays longer than the one that acted would cost the full delay
        if time.monotonic() >= turn:
            break
        time.sleep(_WATCH_S)
    if not silent and leads():  # of a silent one that has just been asked
        return
    if act(spec, paths, allocation, exclude=(leader_host,), told=told, said=said):
        allocation.pull_forward()
        time.sleep(_LAST_S)
        allocation.pull_forward()  # said again by its last process, unless the batch script lives


def _awaited(
    allocation: SlurmAllocation, leader_host: str, ports: Sequence[int], leads: Callable[[], bool]
) -> str | None:
    """Wait until SLURM has dropped the leader's host, or will clearly never do so.

    Returns how the leader ended; None: do nothing.
    """
    began = heard = time.monotonic()
    answering: float | None = None
    while time.monotonic() - began < _DROP_S:
        facts = allocation.facts()
        if facts is not None:
            heard = time.monotonic()
            if not _ours(facts, allocation):
                return None
            if leader_host not in hosts_in(facts.nodes):
                return f"{leader_host}, the leader's host, stopped answering and SLURM has removed it from the job"
            if not host_answers(leader_host, ports):
                answering = None
            elif leads():
                return None
            elif answering is None:
                answering = time.monotonic()
            elif time.monotonic() - answering >= _FROZEN_S:
                allocation.ends_slowly(_ENDING_S)
                return f"The leader on {leader_host} did not respond for {SILENCE_S + time.monotonic() - began:.0f} s"
        elif time.monotonic() - heard > _UNHEARD_S:
            return None
        time.sleep(_POLL_S)
    return f"{leader_host}, the leader's host, did not answer for {SILENCE_S + _DROP_S:.0f} s"


def _ours(facts: JobFacts, allocation: SlurmAllocation) -> bool:
    """Whether the job still runs, in the life that this agent belongs to."""
    return facts.state == "RUNNING" and (facts.restarts is None or facts.restarts == allocation.restart_count)


def _script_gone(facts: JobFacts, allocation: SlurmAllocation) -> bool:
    """Whether SLURM ends the job since its batch script was killed: with the leader gone, too, nobody else requeues it."""
    # ``now`` decides what ends a job that runs; nothing else is asked here.
    said = meaning_of(facts, "TERM", restart_count=allocation.restart_count, now=0.0, lead_s=0.0)
    return said.kind == "script_gone"
