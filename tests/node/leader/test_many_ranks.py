"""What the leader does when thousands of ranks say something at once: its work grows with their number, not with its square.

Calls of functions are counted, not seconds: a slow machine counts the same.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.node.leader import rounds, run_round
from launcher.node.leader.inbox import Inbox
from launcher.node.leader.nodes import Node, Nodes
from launcher.node.leader.picture import picture
from launcher.node.leader.rounds import Round
from launcher.node.policy import first_failure
from launcher.node.policy.decisions import Evidence, Kind
from launcher.node.policy.first_failure import Failure
from launcher.node.policy.hangs import HangWatch
from launcher.node.wire.messages import AgentHello, WorkerExit, WorkerSaid
from launcher.run import events
from launcher.run.messages import WorkerFailure

RANKS = 8
FEW, MANY = 125, 2000
"""Nodes: of 1,000 ranks and of 16,000."""
LOOKS = 20
"""The leader's loop looks at what many connections have brought at once."""


CRASHED: dict[str, Any] = {"exit_code": None, "signal": None, "last_lines": [], "oom": False}


class Link:
    """A connection to an agent that hears nothing."""

    def send(self, message: Any) -> None:
        """Drop it."""

    def close(self) -> None:
        """Nothing is open."""


class Heard:
    """A history in memory; strict on what is written, as the real one."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def event(self, type_: str, **values: Any) -> None:
        """Note one event."""
        self.events.append(events.event(type_, attempt=0, round_=0, **values).raw)


def a_board(count: int, *, wanted: int | None = None) -> Any:
    """The board of a round that trains on ``count`` nodes; all that the job has of ``wanted`` nodes are connected."""
    nodes = Nodes([f"n{index}" for index in range(wanted or count)])
    for node in nodes.all:
        nodes.join(Link(), AgentHello(node=node.index, host=node.name, pid=1, attempt=None, facts=None), 1.0)
    round_ = Round(
        0, nodes.all[:count], tasks_per_node=RANKS, resume=None, hangs=HangWatch(60.0, start_s=60.0), script=False
    )
    budgets = SimpleNamespace(same=Counter(), refusals=Counter(), progressed=True, spent_with_current_s=lambda t: 1.0)
    saver = SimpleNamespace(proof=None, last_step=3, last_t=5.0)
    allocation = SimpleNamespace(job_id="77")
    return SimpleNamespace(
        nodes=nodes, round=round_, budgets=budgets, saver=saver, history=Heard(), saved_t=5.0, now=lambda: 10.0, wake=lambda: None,
        spec=SimpleNamespace(nodes=wanted or count, world_size=(wanted or count) * RANKS, tasks_per_node=RANKS), allocation=allocation,
        failures=0, metrics={}, attempt=0, began_t=0.0, host="n0", phase="training", keeper=None,
        **dict.fromkeys(("interrupt", "stop", "hang", "at_risk")), **dict.fromkeys(("fenced", "term_sent", "usr2_sent"), False),
    )  # fmt: skip


def calls(act: Callable[[], object], most: float) -> int:
    """How many functions ``act`` calls; it is ended after ``most``."""
    count = 0

    def count_it(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"
        if count > most:
            sys.setprofile(None)
            raise AssertionError(f"more than {most:,.0f} calls")

    before = sys.getprofile()
    sys.setprofile(count_it)
    try:
        act()
    finally:
        sys.setprofile(before)
    return count


@pytest.fixture(autouse=True)
def counted_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison of two nodes, or of two failures, counts as a call, also where a list is searched for one."""
    for compared in (Node, Failure):
        monkeypatch.setattr(compared, "__eq__", lambda one, other, real=compared.__eq__: real(one, other))


def grows_with_ranks(act: Callable[[Any], object], **changes: Any) -> None:
    """Check that ``act``, done to a board, takes no more calls a rank with 16,000 ranks than with 1,000."""
    few, many = (a_board(count, **{k: count + more for k, more in changes.items()}) for count in (FEW, MANY))
    once = calls(lambda: act(few), 1e9)
    calls(lambda: act(many), 1.5 * once * MANY / FEW)


def fail_all(board: Any, told: Callable[[int], WorkerFailure | None], end: Callable[[int], dict[str, Any]]) -> Evidence:
    """Have every rank fail: what its worker tells of it, if it does, then its exit. Returns what the leader makes of it."""
    inbox, evidence = Inbox(board, lambda name, node: None), None
    nodes = board.round.nodes
    for index, node in enumerate(nodes):
        for rank in board.round.of_node[node]:
            if (said := told(rank.rank)) is not None:
                whole = WorkerSaid(round=0, rank=rank.rank, message=said.to_wire())
                inbox.received(node.link, whole.to_wire())
            inbox.received(node.link, WorkerExit(round=0, rank=rank.rank, **{**CRASHED, **end(rank.rank)}).to_wire())
        if index % (len(nodes) // LOOKS) == 0:
            evidence = run_round._verdict(board, board.round, 10.0)
    board.now = lambda: 20.0
    evidence = run_round._verdict(board, board.round, 20.0)
    assert evidence is not None
    assert evidence.kind is Kind.WORKER_FAILED
    return run_round._explain(board, board.round, evidence)


def raised(message: str) -> WorkerFailure:
    """A worker's word of an exception."""
    return WorkerFailure(step=3, kind="exception", exception="ValueError", message=message, frames=[], victim=False)


def test_all_ranks_that_fail_alike_cost_the_leader_the_same_each() -> None:
    """From the messages over the verdict to the one failure: with 16,000 ranks no more calls a rank than with 1,000."""

    def act(board: Any) -> None:
        fail_all(board, lambda rank: raised("x"), lambda rank: {"exit_code": 1})
        assert [event["type"] for event in board.history.events] == ["worker_failed"]
        assert len(board.history.events[0]["ranks"]) == board.round.world_size

    grows_with_ranks(act)


def test_the_log_of_a_victim_is_read_for_its_blame_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 ranks abort, and their logs say that a peer is gone: however often the leader looks, no log is searched for that again."""
    read: Counter[str] = Counter()
    kinds: Counter[int] = Counter()

    def count_log(tail: str, real: Callable[[str], bool] = first_failure.is_lost_peer) -> bool:
        read[tail] += 1
        return real(tail)

    def count_cause(failure: Failure, who: str = "", real: Callable[..., Any] = first_failure.cause_of) -> Any:
        kinds[failure.rank] += 1
        return real(failure, who)

    monkeypatch.setattr(first_failure, "is_lost_peer", count_log)
    for user in (first_failure, rounds, run_round):
        monkeypatch.setattr(user, "cause_of", count_cause)
    board = a_board(FEW)
    fail_all(
        board, lambda rank: None, lambda rank: {"signal": 6, "last_lines": [f"rank {rank}: Connection closed by peer"]}
    )

    assert set(read.values()) == {1}
    assert len(read) == board.round.world_size
    assert len(kinds) == 17  # the first, and sixteen victims
    assert len(board.history.events[-1]["ranks"]) == board.round.world_size - 1


def test_a_round_with_fewer_nodes_looks_each_up_once() -> None:
    """A look, and a picture, while the round has fewer nodes than the job wants: no node is looked for among all others."""

    def act(board: Any) -> None:
        spare = board.nodes.all[-1]
        spare.joined_at = 9.0
        assert [run_round._verdict(board, board.round, 10.0) for _ in range(LOOKS)] == [None] * LOOKS
        assert picture(board, [])["spares"] == [spare.host]
        spare.joined_at = 4.0
        assert run_round._verdict(board, board.round, 10.0) == Evidence(
            Kind.MORE_NODES, f"{spare.host} can be used again"
        )

    grows_with_ranks(act, wanted=1)
