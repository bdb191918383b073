"""Asks SLURM for other nodes while the run trains without some (``resources.replace``): one-node jobs whose agents join this leader.

Such a node never leads, and never gives the run back. A signal to its own job means that it leaves: the run stops at an agreed step and
goes on without it.
"""

from __future__ import annotations

import os
from functools import partial

from launcher.errors import SiteError
from launcher.node.allocation.allocation import window_s
from launcher.node.leader.board import Board
from launcher.node.leader.gather_nodes import send_checks
from launcher.node.leader.nodes import Node
from launcher.node.policy.decisions import Kind
from launcher.node.wire import connection
from launcher.node.wire.messages import AgentHello, ChecksDone, Shutdown

_RETURNS_S = 20.0
"""A node whose connection broke may come back for so long."""
_MOST_ASKED = 3
"""Jobs in a row of which none has trained up to a checkpoint: what comes does not help."""
_REFUSED_S = 600.0
"""After a refusal SLURM is asked again."""


async def ask_for_missing(board: Board) -> None:
    """Submit a job for one node that is missing, never for more than the run asked for."""
    now, round_ = board.now(), board.round
    for node in [n for n in board.nodes.all if n.comes]:
        if not await board.blocking(partial(board.allocation.is_coming, str(node.job))):
            node.bad = "its job ended before it joined"
    if board.interrupt is not None or (board.refused_at is not None and now - board.refused_at < _REFUSED_S):
        return
    if round_ is not None and any(n.job for n in round_.nodes) and board.saved_t > round_.began:
        board.asked = 0
    coming = [n for n in board.nodes.all if n.bad is None and not n.leaves and not _is_gone(n, now)]
    if len(coming) >= board.spec.all_nodes or board.asked >= _MOST_ASKED:
        return
    own = [n.name for n in board.nodes.all if n.job is None]
    words = (
        str(board.paths.root), "--node", str(len(board.nodes.all)), "--joins", connection.allocation_life(os.environ),
        "--hosts", ",".join(own), "--leader", str(own.index(board.host)),
    )  # fmt: skip
    taken = tuple(dict.fromkeys([*own, *(n.name for n in board.nodes.all if n.name)]))
    node = board.nodes.add("")
    try:
        node.job = await board.blocking(lambda: board.allocation.ask_for_node(words, exclude=taken))
    except SiteError as error:
        # SLURM may have taken the job although no answer came: its index is given to no other node.
        node.bad = "SLURM did not accept its job"
        board.refused_at = now
        board.history.event("replacement_refused", why=str(error))
        return
    board.asked += 1
    board.history.event("replacement_asked", node=node.index, job_id=node.job)


def _is_gone(node: Node, now: float) -> bool:
    """Whether nobody expects that node any more. One that has never joined is still starting, or waits in the queue."""
    return not node.here and node.lost_at is not None and node.asked_at is None and now - node.lost_at > _RETURNS_S


def may_join(node: Node, hello: AgentHello) -> bool:
    """Whether this agent may be the one of that node; of a replacement, a second process is not."""
    if node.job is None:
        return True
    again = node.pid is None or (node.pid, node.mark) == (hello.pid, hello.mark)
    return again and node.bad is None and not node.leaves


def welcome_node(board: Board, node: Node) -> None:
    """Check a node that has joined; send it away where all are there meanwhile."""
    if not _send_away(board, node) and board.spec.preflight and node.checks is None:
        node.unchecked = True
        send_checks([node], None)


def _send_away(board: Board, node: Node) -> bool:
    """Do without a replacement that cannot be used, or is one too many; return whether it is."""
    if node.bad is None and len(board.nodes.healthy) <= board.spec.all_nodes:
        return False
    node.leaves = True
    node.send(Shutdown())
    return True


def checked(board: Board, node: Node, done: ChecksDone) -> None:
    """Use a node that is as it should be; send away one that is not."""
    node.unchecked = False
    node.joined_at = board.now()  # a checkpoint that was begun before does not hold what is done without it
    checks = [{"host": node.host, **check.to_wire()} for check in done.checks]
    board.history.event(
        "preflight", ok=done.ok, seconds=done.seconds, checks=checks, bandwidth_gb_s=done.bandwidth_gb_s
    )
    if not done.ok:
        failed = "; ".join(f"{check.name}: {check.detail}" for check in done.checks if not check.ok)
        board.exclude(node, failed or "its checks failed")
        node.send(Shutdown())
    else:
        _send_away(board, node)  # the lost node may have come back meanwhile


def note_leaving(board: Board, node: Node, text: str, left_s: float | None) -> None:
    """Do without a node whose own job or host is ending, in ``left_s``: at an agreed step, if it trains. ``text`` says what has happened."""
    if board.round is not None and node in board.round.nodes and board.phase == "training":
        board.stop_wanted(Kind.NODE_LEAVES, text, window_s(Kind.CANCELLED.value, board.spec, left_s))
    else:
        node.send(Shutdown())
    board.wake()


def have_left(board: Board) -> None:
    """Send away the nodes that leave, and those that cannot be used, now that the round has ended; the run goes on."""
    for node in board.nodes.all:
        if node.leaves or (node.job is not None and node.bad is not None):
            node.send(Shutdown())
    if board.interrupt is not None and board.interrupt.evidence.kind is Kind.NODE_LEAVES:
        board.interrupt = None
