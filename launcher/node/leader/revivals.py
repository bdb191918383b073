"""Has the keeper start agents again that have died, in the allocation that is held: the other nodes stay as they are.

The keeper (`launcher.node.allocation.keeper`) is outside the job's steps, beside the batch script. It asks SLURM first.
"""

from __future__ import annotations

import contextlib
import os
import signal
from itertools import islice

from launcher.node.leader.board import Board, KeeperLink
from launcher.node.leader.nodes import Node
from launcher.node.policy.decisions import RESTARTED, Evidence, Kind
from launcher.node.wire import messages as wire
from launcher.node.wire.keeper_messages import KeeperHello, KeeperWelcome, NotRevived, Revive, WithdrawRevival
from launcher.run import clock
from launcher.run.processes import is_alive, mark_of

_MISSED_S = 10.0
"""The batch script has started another keeper by then."""
_ORDERS = 1_000_000
"""More than a leader gives for one node."""


def welcome(board: Board) -> wire.Welcome:
    """Return what an agent that joins is told."""
    return wire.Welcome(
        attempt=board.attempt,
        t=clock.now(),
        kept=board.keeper is not None,
        patience_s=board.timing.rejoin_wait_s + board.start_s,
        line=_line(board),
    )


def _line(board: Board) -> list[int]:
    """Return the nodes that are next in line to lead, by index."""
    others = (node.index for node in board.nodes.healthy if node.name != board.host and node.job is None)
    return list(islice(others, wire.IN_LINE))


def tell_line(board: Board) -> None:
    """Tell the agents who is next in line to lead, where that has changed."""
    if (line := _line(board)) != board.line:
        board.line = line
        _tell_agents(board)


# --- the keeper ---


def keeper_joined(board: Board, link: wire.Link, hello: KeeperHello) -> None:
    """Take the keeper on; the agents learn that there is one."""
    if board.phase == "ended":
        link.send(wire.Shutdown())
        link.close()
        return
    board.keeper, board.keeper_lost_at = KeeperLink(link, hello.pid, hello.mark, heard=board.now()), None
    board.leader_start_s = max(board.leader_start_s, hello.start_s)
    names = [node.name for node in board.nodes.all if node.job is None]
    link.send(KeeperWelcome(pid=os.getpid(), mark=mark_of(os.getpid()), nodes=names, start_s=board.leader_start_s))
    _tell_agents(board)


def keeper_left(board: Board) -> None:
    """Do without the keeper: what it was asked for will not come. The batch script starts another one."""
    board.keeper, board.keeper_lost_at = None, board.now()
    for node in board.nodes.all:
        node.asked_at = None
    _tell_agents(board)


def miss_keeper(board: Board, now: float) -> None:
    """Write once that the leader is without a keeper, where none has come back."""
    if board.keeper_lost_at is not None and now - board.keeper_lost_at > _MISSED_S and board.phase != "ended":
        board.keeper_lost_at = None
        board.history.warn(
            f"the keeper, which starts killed agents and leaders again, has been gone for {_MISSED_S:.0f} s: "
            "one that dies from now on is not started again"
        )


def keeper_stands_still(board: Board) -> None:
    """Wake a keeper that says nothing, as after SIGSTOP: the batch script waits for its end. It joins again by itself."""
    if (keeper := board.keeper) is None:
        return
    if keeper.mark is not None and is_alive(keeper.pid, keeper.mark):
        with contextlib.suppress(OSError):
            os.kill(keeper.pid, signal.SIGCONT)
    keeper.link.close()
    keeper_left(board)


def _tell_agents(board: Board) -> None:
    for node in board.nodes.all:
        node.send(welcome(board))


# --- agents ---


def ask_for(board: Board, node: Node) -> None:
    """Have the agent of a lost node started again, where that can be: not this process's own, nor while the run is stopped."""
    if board.keeper is None or node.name == board.host or node.job or node.bad is not None or node.asked_at is not None:
        return
    goes_on = board.interrupted is None or board.interrupted.kind is Kind.NODE_LEAVES
    if goes_on and board.phase != "ended":
        node.asked_at = board.now()
        # Greater than any order of a leader that has died: the keeper may still speak of those.
        node.orders = max(node.orders, board.claim.leader * _ORDERS) + 1
        board.keeper.link.send(
            Revive(
                node=node.index, host=node.name, address=node.address or node.name, order=node.orders,
                pid=node.pid, mark=node.mark,
            )
        )  # fmt: skip


def joined(board: Board, node: Node, *, again: bool) -> None:
    """Note that a node is here; where its old agent came back by itself (``again``), no other one is to be started."""
    asked_at, node.asked_at = node.asked_at, None
    if asked_at is None:
        return
    if not again:
        board.history.event("agent_revived", host=node.host, seconds=round(board.now() - asked_at, 2))
    elif board.keeper is not None:
        board.keeper.link.send(WithdrawRevival(node=node.index, order=node.orders))


def failed(board: Board, said: NotRevived) -> Node | None:
    """Use a node no more whose agent could not be started again. An agent that had joined is noticed by its connection.

    Returns the node where a step was cancelled instead: `scancel JOB.STEP` kills its agents without a TERM, and means the run. The next
    round waits for the node until SLURM has been asked.
    """
    node = board.nodes.all[said.node] if 0 <= said.node < len(board.nodes.all) else None
    if node is None or node.asked_at is None or said.order != node.orders:
        return None
    if said.step_cancelled:
        return node
    if node.lost_why == "cut_off":  # this host reaches none: the agent comes back by itself when it is reached again
        return None
    board.history.event("revival_failed", host=node.host, why=said.why)
    needed = board.phase == "training" and len(board.nodes.healthy) < board.needed_nodes
    if needed and node.lost_why == "silent":  # its network may come back, and its agent with it (`await_revived`)
        return None
    node.asked_at = None
    board.exclude(node, f"its agent could not be started again: {said.why}")
    return None


async def await_revived(board: Board, evidence: Evidence) -> None:
    """Wait for agents that are being started again, where the next round needs them."""
    if evidence.kind not in RESTARTED:
        return

    def look(now: float) -> bool | None:
        enough = len(board.nodes.healthy) >= board.spec.nodes
        awaited = any(node.asked_at is not None for node in board.nodes.all)
        return enough or not awaited or board.interrupted is not None or None

    if await board.until(look, timeout_s=board.timing.revive_s + board.start_s) is None:
        for node in board.nodes.all:
            node.asked_at = None
