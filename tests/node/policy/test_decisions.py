"""The decision table, row by row."""

from __future__ import annotations

import dataclasses

import pytest

from launcher.node.policy.decisions import (
    REFUSAL_LIMIT,
    SAME_EXCEPTION_LIMIT,
    TABLE,
    Action,
    Evidence,
    Kind,
    Situation,
    decide,
)
from launcher.run.event_parts import Cause

K, A = Kind, Action
FINE = Situation()


def but(**changes: bool) -> Situation:
    return dataclasses.replace(FINE, **changes)


CASES = [
    # a stale attempt leaves, whatever else is true
    (K.FENCED, {}, FINE, A.LEAVE),
    (K.FENCED, {}, but(cancelled=True, hours_left=False), A.LEAVE),
    # done is done, also when somebody wanted it to stop at that very moment
    (K.DONE, {}, FINE, A.COMPLETE),
    (K.DONE, {}, but(cancelled=True, hours_left=False), A.COMPLETE),
    (K.PREEMPTED, {}, but(finished=True), A.COMPLETE),
    (K.TIME_LIMIT, {}, but(finished=True), A.COMPLETE),
    (K.CANCELLED, {}, but(finished=True), A.COMPLETE),
    (K.UNKNOWN_SIGNAL, {}, but(finished=True), A.COMPLETE),
    # cancelled runs never come back
    (K.CANCELLED, {}, FINE, A.CANCEL),
    (K.USER_STOP, {}, FINE, A.CANCEL),
    (K.TERMINATED, {}, FINE, A.CANCEL),
    (K.FALSE_ALARM, {}, FINE, A.NEW_ROUND),
    (K.FALSE_ALARM, {}, but(finished=True), A.COMPLETE),
    (K.PREEMPTED, {}, but(cancelled=True), A.CANCEL),
    (K.WORKER_FAILED, {}, but(cancelled=True), A.CANCEL),
    (K.NODE_LOST, {}, but(cancelled=True), A.CANCEL),
    # a rerun is told of at once, unless it was given restarts
    (K.WORKER_FAILED, {}, but(attended=True, restarts_left=False), A.FAIL),
    (K.WORKER_FAILED, {}, but(attended=True), A.NEW_ROUND),
    # SLURM does not say why: never requeue
    (K.UNKNOWN_SIGNAL, {}, FINE, A.FAIL),
    # cannot start, gave up
    (K.NODES_MISSING, {}, FINE, A.FAIL),
    # a run that has trained comes back without the node that did not start
    (K.NODES_MISSING, {}, but(trained=True, nodes_left=False), A.REQUEUE),
    (K.NODES_MISSING, {}, but(trained=True, attempts_left=False), A.FAIL),
    (K.NODES_MISSING, {}, but(trained=True, may_requeue=False), A.FAIL),
    (K.NODES_MISSING, {}, but(trained=True, hours_left=False), A.FAIL),
    (K.NODES_MISSING, {}, but(trained=True, cancelled=True), A.CANCEL),
    (K.PORTS_TAKEN, {}, FINE, A.FAIL),
    (K.PORTS_TAKEN, {}, but(trained=True), A.REQUEUE),
    (K.PORTS_TAKEN, {}, but(trained=True, attempts_left=False), A.FAIL),
    (K.PORTS_TAKEN, {}, but(trained=True, may_requeue=False), A.FAIL),
    (K.IDLE, {}, FINE, A.FAIL),
    (K.HOURS, {}, FINE, A.FAIL),
    (K.HOURS, {}, but(finished=True), A.COMPLETE),
    (K.DISK_AT_RISK, {}, FINE, A.FAIL),
    # a folder that does not answer says nothing: never complete, and on other nodes it may be there
    (K.UNREADABLE, {}, FINE, A.REQUEUE),
    (K.UNREADABLE, {}, but(finished=True), A.REQUEUE),
    (K.UNREADABLE, {}, but(cancelled=True), A.CANCEL),
    (K.UNREADABLE, {}, but(may_requeue=False), A.FAIL),
    (K.UNREADABLE, {}, but(attempts_left=False), A.FAIL),
    # a folder that is gone: nobody requeues into it
    (K.GONE, {}, FINE, A.FAIL),
    (K.GONE, {"cause": Cause.plain("gone", "it was moved", "/new")}, FINE, A.FAIL),
    (K.GONE, {}, but(cancelled=True), A.CANCEL),
    # a checkpoint that holds what cannot be loaded
    (K.WORKER_FAILED, {"cause": Cause.plain("unloadable", "it cannot be read")}, FINE, A.FAIL),
    (K.WORKER_FAILED, {"cause": Cause.plain("exception", "it failed")}, FINE, A.NEW_ROUND),
    # the program is wrong
    (K.WORKER_FAILED, {"same_before": SAME_EXCEPTION_LIMIT - 1}, FINE, A.FAIL),
    (K.WORKER_FAILED, {"same_before": SAME_EXCEPTION_LIMIT - 2}, FINE, A.NEW_ROUND),
    (K.WORKER_FAILED, {"refusals": REFUSAL_LIMIT}, FINE, A.FAIL),
    (K.WORKER_FAILED, {"refusals": REFUSAL_LIMIT - 1}, FINE, A.NEW_ROUND),
    # the cap over all attempts
    (K.PREEMPTED, {}, but(hours_left=False), A.FAIL),
    (K.WORKER_FAILED, {}, but(hours_left=False), A.FAIL),
    # the allocation is taken away
    (K.PREEMPTED, {}, FINE, A.REQUEUE),
    (K.PREEMPTED_NOW, {}, FINE, A.REQUEUE),
    (K.TIME_LIMIT, {}, FINE, A.REQUEUE),
    (K.SCRIPT_GONE, {}, FINE, A.REQUEUE),
    (K.PREEMPTED, {}, but(nodes_left=False, restarts_left=False), A.REQUEUE),
    (K.PREEMPTED, {}, but(may_requeue=False), A.FAIL),
    (K.TIME_LIMIT, {}, but(attempts_left=False), A.FAIL),
    # a worker, a store, a hang: in place
    (K.WORKER_FAILED, {}, FINE, A.NEW_ROUND),
    (K.HANG, {}, FINE, A.NEW_ROUND),
    (K.STORE, {}, FINE, A.NEW_ROUND),
    # saves that cannot be: training again would end in the same way
    (K.LAST_SAVE, {}, FINE, A.FAIL),
    (K.NO_RESUME, {}, FINE, A.FAIL),
    (K.CANNOT_SAVE, {}, FINE, A.FAIL),
    (K.WORKER_FAILED, {}, but(restarts_left=False), A.FAIL),
    (K.HANG, {}, but(restarts_left=False), A.FAIL),
    (K.WORKER_FAILED, {}, but(may_requeue=False), A.NEW_ROUND),
    # a node: on a spare, else requeue without it, else the end
    (K.NODE_LOST, {"hosts": ("n1",)}, FINE, A.NEW_ROUND),
    (K.NODE_LOST, {"hosts": ("n1",)}, but(nodes_left=False), A.REQUEUE),
    (K.PREFLIGHT, {"hosts": ("n1",)}, but(nodes_left=False), A.REQUEUE),
    (K.NODE_LOST, {}, but(nodes_left=False, attempts_left=False), A.FAIL),
    (K.NODE_LOST, {}, but(nodes_left=False, may_requeue=False), A.FAIL),
    # the leader died and another one took its place: as a failed worker
    (K.LEADER_GONE, {}, FINE, A.NEW_ROUND),
    (K.LEADER_GONE, {}, but(restarts_left=False), A.FAIL),
    (K.LEADER_GONE, {}, but(nodes_left=False), A.REQUEUE),
    # fewer nodes than the job wants: more memory for each rank, until another node comes
    (K.WORKER_FAILED, {"cause": Cause.plain("cuda_oom", "no memory")}, but(shrunk=True), A.REQUEUE),
    (K.WORKER_FAILED, {"cause": Cause.plain("cuda_oom", "no memory")}, FINE, A.NEW_ROUND),
    (
        K.WORKER_FAILED,
        {"cause": Cause.plain("cuda_oom", "no memory")},
        but(shrunk=True, may_requeue=False),
        A.NEW_ROUND,
    ),
    (K.WORKER_FAILED, {"cause": Cause.plain("exception", "it failed")}, but(shrunk=True), A.NEW_ROUND),
    (K.MORE_NODES, {}, but(shrunk=True, restarts_left=False), A.NEW_ROUND),
    (K.MORE_NODES, {}, but(shrunk=True, nodes_left=False), A.REQUEUE),
]


@pytest.mark.parametrize(("kind", "more", "situation", "action"), CASES)
def test_each_row_decides_as_written(kind, more, situation, action):
    """Evidence in a situation leads to exactly one action."""
    decision = decide(Evidence(kind, "something happened", **more), situation)

    assert decision.action is action
    assert decision.reason.startswith("Something happened; ")
    assert decision.reason.endswith(".")


def test_the_cases_reach_every_row():
    """No row of the table is dead, and none is untested."""
    reached = {decide(Evidence(kind, "x", **more), situation).row for kind, more, situation, _ in CASES}

    assert reached == set(range(len(TABLE)))


@pytest.mark.parametrize("kind", list(Kind))
def test_every_evidence_is_decided_in_every_situation(kind):
    """All 2**7 situations of all kinds have a decision; cancelled runs are never requeued or restarted."""
    flags = [f.name for f in dataclasses.fields(Situation)]
    for bits in range(2 ** len(flags)):
        situation = Situation(**{name: bool(bits >> i & 1) for i, name in enumerate(flags)})
        decision = decide(Evidence(kind, "x"), situation)
        if situation.cancelled:
            assert decision.action not in (A.REQUEUE, A.NEW_ROUND)
        if not situation.may_requeue or kind is K.UNKNOWN_SIGNAL:
            assert decision.action is not A.REQUEUE
