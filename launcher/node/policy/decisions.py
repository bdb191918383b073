"""The decision table: evidence and situation in, one typed decision out. Pure; read it from top to bottom.

The first row whose evidence matches and whose condition holds decides. Every evidence ends in an unconditional row.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from launcher.frozen import frozen
from launcher.run.event_parts import Cause

SAME_EXCEPTION_LIMIT = 3
"""The same exception at the same step so often: the program is wrong."""

REFUSAL_LIMIT = 2
"""Every rank ended itself with the same exit code, before any progress, so often: the script does not want to run."""


class Kind(str, Enum):
    """What happened."""

    DONE = "done"
    WORKER_FAILED = "worker_failed"
    NODE_LOST = "node_lost"
    HANG = "hang"
    STORE = "store_failed"
    LAST_SAVE = "last_save_failed"
    DAMAGED = "checkpoint_damaged"
    """The checkpoint that the round resumed from: it was read while the round ran already."""
    NO_RESUME = "no_resume"
    """What the run is to go on from cannot be read here, and no retry changes that."""
    NODES_MISSING = "nodes_missing"
    PORTS_TAKEN = "ports_taken"
    """The leader can listen on none of its candidate ports."""
    PREFLIGHT = "preflight_failed"
    PREEMPTED = "preempted"
    PREEMPTED_NOW = "preempted_now"
    TIME_LIMIT = "time_limit"
    SCRIPT_GONE = "script_gone"
    """The batch script was killed: SLURM ends the job as failed, while its agents live."""
    CANCELLED = "cancelled"
    USER_STOP = "user"
    TERMINATED = "terminated"
    """TERM was sent by hand."""
    UNKNOWN_SIGNAL = "unknown"
    FALSE_ALARM = "nothing"
    """The workers were stopped for a signal that turned out to mean nothing."""
    DISK_AT_RISK = "disk_at_risk"
    CANNOT_SAVE = "cannot_save"
    """Saves fail for a lasting reason."""
    UNREADABLE = "folder_unreadable"
    """The run's folder does not answer: what it holds, newer checkpoints and attempts, is not known."""
    GONE = "folder_gone"
    """The run's folder was deleted or moved. ``cause`` holds its new ``place``, where that is known."""
    IDLE = "idle"
    HOURS = "total_hours"
    """The allocations of all attempts together have lasted ``restart.max_total_hours``."""
    LEADER_GONE = "leader_gone"
    """The leader died, and this one has taken its place in the same allocation."""
    NODE_LEAVES = "node_leaves"
    """SLURM ends the job of a replacement, and takes its node."""
    MORE_NODES = "more_nodes"
    """A round has fewer nodes than the job wants, and another one has come."""
    FENCED = "fenced"


class Action(str, Enum):
    """What is done about it."""

    COMPLETE = "complete"
    NEW_ROUND = "new_round"
    REQUEUE = "requeue"
    """Give the allocation back and have SLURM start the run again (a continuation job where it may not)."""
    FAIL = "fail"
    CANCEL = "cancel"
    LEAVE = "leave"
    """Go, and say nothing: this attempt is not the run's newest."""


@frozen
class Evidence:
    """What happened, with the clause that a user reads."""

    kind: Kind
    text: str
    cause: Cause | None = None
    """CAUSE of the first failure, where there is one."""
    hosts: tuple[str, ...] = ()
    """Hosts that are to blame."""
    rank: int | None = None
    step: int | None = None
    same_before: int = 0
    """How often the very same exception happened at this step before."""
    refusals: int = 0
    """How often every rank has now ended itself with this exit code before any progress."""
    said: str = ""
    """How the leader ended, for LEADER_GONE, where that is known."""


@frozen
class Situation:
    """What else counts."""

    nodes_left: bool = True
    """Enough healthy nodes are in the allocation for another round."""
    may_requeue: bool = True
    """There is a SLURM, ``restart.requeue`` is on and nobody cancelled the job."""
    restarts_left: bool = True
    """For this kind of evidence, since the last committed progress."""
    attempts_left: bool = True
    """Attempts without progress are below the limit."""
    hours_left: bool = True
    """Allocation hours over all attempts are below ``restart.max_total_hours``."""
    cancelled: bool = False
    """Somebody cancelled the job, whatever else happened."""
    trained: bool = False
    """Workers have run before, in this attempt or an earlier one: there is something to go on with."""
    attended: bool = False
    """Somebody waits for the run, a rerun, and wants to be told of what fails."""
    shrunk: bool = False
    """The round had fewer nodes than the job wants."""
    finished: bool = False
    """The agreed step was the last one: nothing is left to do."""


@frozen
class Row:
    """One line of the table."""

    kinds: tuple[Kind, ...]
    when: Callable[[Evidence, Situation], bool]
    action: Action
    why: str
    """Completes "<what happened>; ..."."""


@frozen
class Decision:
    """What to do, and why in one sentence."""

    action: Action
    reason: str
    row: int


def _always(e: Evidence, s: Situation) -> bool:
    return True


K, A = Kind, Action
_ANY = tuple(Kind)
MEMORY = ("oom", "host_memory", "cuda_oom")
"""Kinds of causes that more ranks may prevent."""
_WORKER = (K.WORKER_FAILED, K.HANG, K.STORE, K.DAMAGED, K.LEADER_GONE)
_NODE = (K.NODE_LOST, K.PREFLIGHT)
TAKEN_AWAY = (K.PREEMPTED, K.PREEMPTED_NOW, K.TIME_LIMIT, K.SCRIPT_GONE)
"""SLURM takes the allocation away, whatever the run does."""
_ENDED = (K.CANCELLED, K.USER_STOP, K.TERMINATED)
_STOPPED = (K.UNKNOWN_SIGNAL, K.FALSE_ALARM, K.NODE_LEAVES)
RESTARTED = (*_WORKER, *_NODE, K.FALSE_ALARM, K.MORE_NODES, K.NODE_LEAVES)
"""What a new round follows where there are nodes for one."""

TABLE: tuple[Row, ...] = (
    Row((K.FENCED,), _always, A.LEAVE, "the job was given back to SLURM, or a newer attempt has begun"),
    Row((K.DONE,), _always, A.COMPLETE, "all steps are done"),
    Row((*TAKEN_AWAY, *_ENDED, *_STOPPED, K.IDLE, K.HOURS), lambda e, s: s.finished, A.COMPLETE, "all steps are done"),
    Row(_ENDED, _always, A.CANCEL, "cancelled runs never come back by themselves"),
    Row(_ANY, lambda e, s: s.cancelled, A.CANCEL, "the job was cancelled"),
    Row((K.UNKNOWN_SIGNAL,), _always, A.FAIL, "it may have been cancelled, so it is not requeued: `launcher resubmit` continues it"),
    Row((K.GONE,), lambda e, s: bool(e.cause and e.cause.place), A.FAIL, "a running job cannot follow it: `launcher resubmit`"
        " with the new folder continues the run"),
    Row((K.GONE,), _always, A.FAIL, "nothing is left to go on with"),
    Row((K.NODES_MISSING, K.PORTS_TAKEN), lambda e, s: not s.trained, A.FAIL, "the run cannot start"),
    Row((K.IDLE,), _always, A.FAIL, "the allocation was given back"),
    Row((K.HOURS,), _always, A.FAIL, "`launcher resubmit` with a higher cap continues it"),
    Row((K.DISK_AT_RISK,), _always, A.FAIL, "too much work would be lost in a failure"),
    Row((K.CANNOT_SAVE,), _always, A.FAIL, "all further work would be lost"),
    Row((K.NO_RESUME,), _always, A.FAIL, "another attempt would find the same"),
    Row((K.LAST_SAVE,), _always, A.FAIL, "the training is done and is not repeated; `launcher resubmit` goes on from the newest checkpoint"),
    Row((K.WORKER_FAILED,), lambda e, s: e.same_before + 1 >= SAME_EXCEPTION_LIMIT, A.FAIL, "the same exception came at the same step"
        f" {SAME_EXCEPTION_LIMIT} times: the program is wrong"),
    Row((K.WORKER_FAILED,), lambda e, s: e.cause is not None and e.cause.kind == "unloadable", A.FAIL, "a restart would fail in the same way"),
    Row((K.WORKER_FAILED,), lambda e, s: e.refusals >= REFUSAL_LIMIT, A.FAIL, "the script ended itself in this way twice, before"
        " any progress"),
    Row(_ANY, lambda e, s: not s.hours_left, A.FAIL, "restart.max_total_hours is used up"),
    Row((K.WORKER_FAILED,), lambda e, s: s.shrunk and s.may_requeue and s.attempts_left and e.cause is not None
        and e.cause.kind in MEMORY, A.REQUEUE, "with fewer nodes a rank needs more memory, so the run is requeued for all its nodes"),
    Row((K.MORE_NODES,), lambda e, s: s.nodes_left, A.NEW_ROUND, "the workers start again with it from this checkpoint"),
    Row((K.UNREADABLE,), lambda e, s: s.may_requeue and s.attempts_left, A.REQUEUE, "the run goes on in another attempt"),
    Row((K.UNREADABLE,), _always, A.FAIL, "the run may not be requeued again; `launcher resubmit` continues it"),
    Row((K.NODES_MISSING,), lambda e, s: s.may_requeue and s.attempts_left, A.REQUEUE, "the run is requeued without them"),
    Row((K.PORTS_TAKEN,), lambda e, s: s.may_requeue and s.attempts_left, A.REQUEUE, "the run is requeued without this host"),
    Row((K.NODES_MISSING, K.PORTS_TAKEN), _always, A.FAIL, "the run may not be requeued again"),
    Row(TAKEN_AWAY, lambda e, s: not s.may_requeue, A.FAIL, "the run may not be requeued; `launcher resubmit` continues it"),
    Row(TAKEN_AWAY, lambda e, s: not s.attempts_left, A.FAIL, "too many attempts in a row made no progress"),
    Row(TAKEN_AWAY, _always, A.REQUEUE, "the run goes on in another attempt"),
    Row((*_WORKER, *_NODE), lambda e, s: s.attended and not s.restarts_left, A.FAIL, "a rerun is not started again by itself"),
    Row((*_WORKER, *_NODE), lambda e, s: not s.restarts_left, A.FAIL, "restart.max_restarts is used up and training got no further"),
    Row(RESTARTED, lambda e, s: s.nodes_left, A.NEW_ROUND, "the workers start again"),
    Row(RESTARTED, lambda e, s: s.may_requeue and s.attempts_left, A.REQUEUE, "the run is requeued without"
        " the lost nodes"),
    Row(RESTARTED, lambda e, s: s.may_requeue, A.FAIL, "too many attempts in a row made no progress"),
    Row(RESTARTED, _always, A.FAIL, "too few nodes are left and the run may not be requeued"),
)  # fmt: skip


def decide(evidence: Evidence, situation: Situation) -> Decision:
    """The decision for ``evidence`` in ``situation``."""
    for number, row in enumerate(TABLE):
        if evidence.kind in row.kinds and row.when(evidence, situation):
            text = evidence.text[:1].upper() + evidence.text[1:]
            return Decision(row.action, f"{text}; {row.why}.", number)
    raise LookupError(f"no row for {evidence.kind}")
