"""Asks SLURM for other nodes while the run trains without some (``resources.replace``): one-node jobs whose agents join this leader.

Such a node never leads, and never gives the run back. What its own job is sent means that it leaves: the run stops at an agreed step and
goes on without it.
"""

from __future__ import annotations

import os
from functools import partial

from launcher.errors import SiteError
from launcher.node.allocation.allocation import window_s
from launcher.node.leader.board import Board
from launcher.node.leader.nodes import Node
from launcher.node.policy.decisions import Kind
from launcher.node.wire import connection
from launcher.node.wire.messages import Shutdown

_RETURNS_S = 20.0
"""A node whose connection broke may come back for so long."""
_MOST_ASKED = 3
"""Jobs in a row without new progress: what comes does not help."""
_REFUSED_S = 600.0
"""After a refusal SLURM is asked again."""


async def ask_for_missing(board: Board) -> None:
    """Submit a job for one node that is missing, never for more than the run asked for."""
    now = board.now()
    if board.interrupt is not None or (board.refused_at is not None and now - board.refused_at < _REFUSED_S):
        return
    for node in [
        n for n in board.nodes.all if n.job is not None and not n.here and n.lost_at is None and n.bad is None
    ]:
        if not await board.blocking(partial(board.allocation.is_coming, str(node.job))):
            node.bad = "its job ended before it joined"
    coming = [n for n in board.nodes.all if n.bad is None and not n.leaves and not _is_gone(n, now)]
    if len(coming) >= board.spec.all_nodes or board.asked.count(board.budgets.advances) >= _MOST_ASKED:
        return
    board.asked.append(board.budgets.advances)
    own = [n.name for n in board.nodes.all if n.job is None]
    words = (
        str(board.paths.root), "--node", str(len(board.nodes.all)), "--joins", connection.allocation_life(os.environ),
        "--hosts", ",".join(own), "--leader", str(own.index(board.host)),
    )  # fmt: skip
    taken = tuple(dict.fromkeys([*own, *(n.name for n in board.nodes.all if n.name)]))
    try:
        job = await board.blocking(lambda: board.allocation.ask_for_node(words, exclude=taken))
    except SiteError as error:
        board.refused_at = now
        board.history.event("replacement_refused", why=str(error))
        return
    node = board.nodes.add(job)
    board.history.event("replacement_asked", node=node.index, job_id=job)


def _is_gone(node: Node, now: float) -> bool:
    """Whether nobody expects that node any more. One that has never joined is still starting, or waits in the queue."""
    if node.here or node.lost_at is None:
        return False
    return node.job is not None or (node.asked_at is None and now - node.lost_at > _RETURNS_S)


def note_leaving(board: Board, node: Node, signal: str) -> None:
    """Do without a node whose own job is ending: at an agreed step, if it trains."""
    if node.leaves:
        return
    node.leaves = True
    if board.round is not None and node in board.round.nodes and board.phase == "training":
        spec = board.spec
        left_s = float(spec.restart.signal_lead_s) if signal == "USR2" else None
        text = f"{node.host}, which job {node.job} holds, is taken away"
        board.stop_wanted(Kind.NODE_LEAVES, text, window_s(Kind.CANCELLED.value, spec, left_s))
    else:
        node.send(Shutdown())
    board.wake()


def have_left(board: Board) -> None:
    """Send away the nodes that leave, now that the round has ended; the run goes on."""
    for node in board.nodes.all:
        if node.leaves:
            node.send(Shutdown())
    if board.interrupt is not None and board.interrupt.evidence.kind is Kind.NODE_LEAVES:
        board.interrupt = None
