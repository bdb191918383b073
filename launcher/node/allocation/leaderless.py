"""What agents do when their leader is gone and nobody has told them to leave.

Measured on 22.05: with ``--no-kill`` a job whose batch host dies is *not* requeued. SLURM drops the host from the job, and
the job stays RUNNING, with no batch script, until its time limit. So the nodes next in line stay. Where the run can do without
the host, one of them leads (`launcher.node.agent.leader_search`), and at the end does what the batch script would have done.
Otherwise one hands the job back; where the batch script still runs, its teardown finds that done.

When a host does not answer, the agents wait until SLURM has dropped it: requeued earlier, the job would stay COMPLETING
until then, and start with SLURM's full delay (121 s) after that. A host that still answers connections is alive, and only
its leader stands still (SIGSTOP, a dead file system): SLURM would never drop it.

A leader that answers is alive and leads: this host was cut off for a while, and the others train on. So does one that this host
cannot reach, and that writes its picture of the run all the while.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcher.frozen import frozen
from launcher.node.allocation.early_exits import hosts_in
from launcher.node.allocation.held_allocation import conclude_reruns
from launcher.node.allocation.reach import host_answers
from launcher.node.allocation.slurm_allocation import SlurmAllocation
from launcher.node.allocation.teardown import act
from launcher.node.checkpoints import claims
from launcher.node.wire.messages import SILENCE_S
from launcher.run import event_lines
from launcher.run.asking import patiently
from launcher.run.events import JobNamed, Requeued, last_of
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.run.state import read_outcome, read_state
from launcher.slurm.jobs import JobFacts
from launcher.slurm.meaning import meaning_of

LEAD_S = 25
"""Lead of StartTime when the first host is dead: step ends are told along a tree whose root it was, and SLURM took 11 s
(2 of 2) after the last process to see the end; a StartTime before that would be replaced by the full delay."""

DROP_S = 660.0
"""Twice SlurmdTimeout, which is 300 s by default, and some more."""
COMES_BACK_S = 20.0
"""A leader on a live host may come back for so long; what it decides then is valid."""
_WRITES_S = 20.0
"""A leader that has written within so long lives: it does so every second, with many thousand ranks more seldom."""
_ENDING_S = 10
"""SLURM takes so long, beyond KillWait, to end a process that stands still and to see that."""
_POLL_S = 2.0
_TURN_S = 5.0
_LEAD_TURN_S = 20.0
"""Longer than a look takes: SLURM is asked every two seconds, and a host that does not answer costs three more."""
_CLAIMED_S = 60.0
"""A leader that has claimed the attempt answers within so long, or has died."""
_WATCH_S = 0.5
_LAST_S = 2.0
"""The other agents have seen it and left by then."""
_UNHEARD_S = 600.0
"""slurmctld may be restarting, and where the batch script is gone nobody else would hand the job back or end it: it is asked for so long."""


@frozen
class LeaderEnd:
    """What became of a leader that is gone."""

    said: str
    """How it ended; "" where only its own last words tell."""
    removed: bool = False
    """SLURM has removed its host from the job."""
    stands_still: bool = False
    """Its process is still there, and ends late."""
    left: tuple[str, ...] = ()
    """The hosts that the job still has, where this node is to lead."""


def adopt(
    spec: RunSpec,
    paths: RunPaths,
    environ: Mapping[str, str],
    *,
    place: int,
    leader_host: str,
    batch_host: str,
    ports: Sequence[int],
    silent: bool,
    leads: Callable[[], bool],
    told: bool = False,
    end: LeaderEnd | None = None,
) -> None:
    """Hand the job back unless somebody else has. ``place`` is this node's in the line, from 0; the leader was on one of ``ports``.

    ``silent``: the leader stopped answering; otherwise its connection closed. ``leads`` says whether it answers. Without an
    answer from SLURM nothing is done: this host may be the one that is cut off. ``told``: TERM came, which ends a job that SLURM wants
    nothing of. ``end``: what became of the leader, where that was awaited already. ``batch_host``: where the batch script runs.
    """
    allocation = SlurmAllocation(spec, paths, environ, least_lead_s=LEAD_S if silent else 0)
    if end is None:
        end = await_leader_end(paths, allocation, leader_host, ports, leads) if silent else LeaderEnd("")
    if end is None or not _await_turn(allocation, place):
        return
    if end.stands_still:
        allocation.ends_slowly(_ENDING_S)
    if not silent and leads():  # of a silent one that has just been asked
        return
    again = _decide(spec, paths, allocation, batch_host, exclude=(leader_host,), told=told, said=end.said)
    if spec.hold and not again:
        conclude_reruns(paths, end.said.rstrip(".") or "its hold has ended")
    _finish_job(paths, allocation, batch_host, again=again)


class _Picture:
    """The leader's picture of the run, as it changes."""

    def __init__(self, paths: RunPaths) -> None:
        self._path, self._changed_at = paths.state, -math.inf
        self._t = read_state(self._path).get("t")

    def look(self) -> None:
        """Note whether it has changed."""
        t = read_state(self._path).get("t")
        if t not in (None, self._t):
            self._t, self._changed_at = t, time.monotonic()

    @property
    def is_new(self) -> bool:
        """Whether a leader writes it."""
        return time.monotonic() - self._changed_at < _WRITES_S


def await_leader_end(
    paths: RunPaths,
    allocation: SlurmAllocation,
    leader_host: str,
    ports: Sequence[int],
    leads: Callable[[], bool],
    *,
    frozen_s: float = COMES_BACK_S,
    over: Callable[[], bool] = lambda: False,
) -> LeaderEnd | None:
    """Wait until SLURM has dropped the leader's host, or will clearly never do so; None: do nothing.

    ``frozen_s``: a leader on a live host may come back for so long. ``over`` says that the answer is not needed any more.
    """
    began = heard = time.monotonic()
    answering: float | None = None
    picture = _Picture(paths)
    while time.monotonic() - began < DROP_S and not over():
        facts = allocation.facts()
        picture.look()
        if facts is not None:
            heard = time.monotonic()
            if not _ours(facts, allocation):
                return LeaderEnd("") if _script_gone(facts, allocation) else None
            if leader_host not in hosts_in(facts.nodes):
                said = f"{leader_host}, the leader's host, stopped answering and SLURM has removed it from the job"
                return LeaderEnd(said, removed=True)
            if not host_answers(leader_host, ports):
                answering = None
            elif leads():
                return None
            elif answering is None:
                answering = time.monotonic()
            elif time.monotonic() - answering >= frozen_s and not picture.is_new:
                gone_s = SILENCE_S + time.monotonic() - began
                return LeaderEnd(f"The leader on {leader_host} did not respond for {gone_s:.0f} s", stands_still=True)
        elif time.monotonic() - heard > _UNHEARD_S:
            return None
        time.sleep(_POLL_S)
    if picture.is_new:
        return None
    return LeaderEnd(f"{leader_host}, the leader's host, did not answer for {SILENCE_S + DROP_S:.0f} s")


def _facts(allocation: SlurmAllocation) -> JobFacts | None:
    """Return what SLURM says of the job; None: it has not answered for `_UNHEARD_S`."""
    end = time.monotonic() + _UNHEARD_S
    while (facts := allocation.facts()) is None and time.monotonic() < end:
        time.sleep(_POLL_S)
    return facts


def _await_turn(allocation: SlurmAllocation, place: int) -> bool:
    """Wait for this node's turn; False when nothing is to be done any more."""
    turn: float | None = None
    while True:
        facts = _facts(allocation)
        if facts is None or not (_ours(facts, allocation) or _script_gone(facts, allocation)):
            return False  # an agent that stays longer than the one that acted would cost the full delay
        if turn is None:  # a SLURM that was away answers all agents at once
            turn = time.monotonic() + _TURN_S * place
        if time.monotonic() >= turn:
            return True
        time.sleep(_WATCH_S)


def await_lead(
    allocation: SlurmAllocation,
    node: str,
    line: Sequence[str],
    *,
    over: Callable[[], bool],
    claims: Callable[[], int],
    before: int,
) -> tuple[str, ...]:
    """Wait until this ``node`` is to lead: the first of the ``line`` that SLURM still lists leads, and the next ones if it does not.

    ``claims`` counts the leaders that this attempt has had, and there were ``before`` when the last one was lost: one that has claimed it
    since is waited for. Returns the job's hosts. Returns
    none where this node is not to lead: the job was requeued or ends, SLURM does not answer, or another node leads (``over``).
    """
    began = heard = time.monotonic()
    claimed = -_CLAIMED_S
    while not over():
        facts = allocation.facts()
        if facts is not None:
            if time.monotonic() - heard > _LEAD_TURN_S:
                began = time.monotonic()  # a SLURM that was away answers all nodes at once
            heard = time.monotonic()
            if not _ours(facts, allocation) or node not in (listed := hosts_in(facts.nodes)):
                break
            if claims() > before:
                before, claimed = claims(), time.monotonic()
            turn = _LEAD_TURN_S * sum(host in listed for host in line[: line.index(node)])
            if time.monotonic() - began >= turn and time.monotonic() - claimed >= _CLAIMED_S:
                return tuple(listed)
        elif time.monotonic() - heard > _UNHEARD_S:
            break
        time.sleep(_WATCH_S)
    return ()


def conclude(spec: RunSpec, paths: RunPaths, allocation: SlurmAllocation, batch_host: str) -> None:
    """Do what the batch script would have done after its leader: its host is gone."""
    try:
        again = _decide(spec, paths, allocation, batch_host)
    except OSError as error:  # the folder is gone, or away for minutes: nobody could go on there
        allocation.remark(f"how the run ended is not known: {error}")
        allocation.end_job(completed=False)
        return
    if spec.hold and not again:
        conclude_reruns(paths, "its hold has ended")
    _finish_job(paths, allocation, batch_host, again=again)


def _decide(spec: RunSpec, paths: RunPaths, allocation: SlurmAllocation, batch_host: str, **how: Any) -> bool:
    """Do what `act` does, and once more where SLURM was away for longer than that asks: without a batch script nobody else would."""
    before = patiently(lambda: claims.newest_claim(paths), paths.root)
    if act(spec, paths, allocation, **how):
        return True
    undecided = read_outcome(paths.outcome) is None and not _goes_on_elsewhere(paths)
    if not (undecided and _script_lost(allocation, batch_host)):
        return False
    same = patiently(lambda: claims.newest_claim(paths), paths.root) == before
    return same and act(spec, paths, allocation, **how)


def _finish_job(paths: RunPaths, allocation: SlurmAllocation, batch_host: str, *, again: bool) -> None:
    """Have a job that SLURM runs again start soon (``again``). End one whose run is over, or goes on in another job, and whose batch
    script is gone with its host: SLURM would keep it to its time limit.
    """
    if _script_lost(allocation, batch_host):
        outcome = read_outcome(paths.outcome)
        if outcome is not None:
            again = allocation.end_job(completed=outcome.get("state") == "completed")
        elif _goes_on_elsewhere(paths):
            allocation.end_job(completed=False)
    if again:
        _start_soon(allocation)


def _script_lost(allocation: SlurmAllocation, batch_host: str) -> bool:
    """Whether the job runs on without its batch script, whose host SLURM has removed from it."""
    facts = None if allocation.taken() else _facts(allocation)
    return facts is not None and _ours(facts, allocation) and batch_host not in hosts_in(facts.nodes)


def _goes_on_elsewhere(paths: RunPaths) -> bool:
    last = last_of(event_lines.read(paths.events), JobNamed)
    return isinstance(last, Requeued) and last.how == "continuation"


def _start_soon(allocation: SlurmAllocation) -> None:
    allocation.pull_forward()
    time.sleep(_LAST_S)
    allocation.pull_forward()  # said again by its last process, unless the batch script lives


def _ours(facts: JobFacts, allocation: SlurmAllocation) -> bool:
    """Whether the job still runs, in the life that this agent belongs to."""
    return facts.state == "RUNNING" and (facts.restarts is None or facts.restarts == allocation.restart_count)


def _script_gone(facts: JobFacts, allocation: SlurmAllocation) -> bool:
    """Whether SLURM ends the job since its batch script was killed: with the leader gone, too, nobody else requeues it."""
    # ``now`` decides what ends a job that runs; nothing else is asked here.
    said = meaning_of(facts, "TERM", restart_count=allocation.restart_count, now=0.0, lead_s=0.0)
    return said.kind == "script_gone"
