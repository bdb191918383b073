"""Makes ``state.json`` from the board."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

from launcher.node.leader.board import Board
from launcher.node.leader.rounds import Rank
from launcher.run import clock

_AT_ONCE = 500
_PICTURE_S, _RANKS_A_SECOND = 1.0, 1000
_SAMPLES_S = 10.0
_SAMPLES_KEPT = 90_000
"""Samples of single ranks (16 MB) for each time that the run's age grows by a factor of e; `_ROUND_PART` makes it more beyond 18,000 ranks."""
_ROUND_PART = 0.2
"""Of a round's age: the longest time without a sample, so that a short round late in a long run has its curves too."""


def missing(board: Board) -> list[dict[str, Any]]:
    """Return the missing nodes, with the ranks they would have if no other were missing."""
    per = board.spec.tasks_per_node
    return [
        {"host": n.name, "ranks": list(range(n.index * per, (n.index + 1) * per)) if n.index < board.spec.nodes else []}
        for n in board.nodes.missing
    ]


async def each_rank(ranks: Sequence[Rank], tell: Callable[[Rank], dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what ``tell`` says of each rank; the event loop goes on between some hundreds of them."""
    told: list[dict[str, Any]] = []
    for at in range(0, len(ranks), _AT_ONCE):
        told += map(tell, ranks[at : at + _AT_ONCE])
        if len(ranks) > _AT_ONCE:
            await asyncio.sleep(0)
    return told


def picture(board: Board, ranks: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return the keys of `launcher.run.state`. ``ranks``: those of the round, where they are told already."""
    round_, now = board.round, board.now()
    used = round_.of_node if round_ is not None else {}  # looked up for each node
    saver = board.saver
    return {
        **clock.stamp(),
        "attempt": board.attempt,
        "round": round_.number if round_ is not None else None,
        "phase": _phase(board),
        "missing": missing(board),
        "step": round_.step if round_ is not None else saver.last_step or 0,
        **{k: getattr(round_, k, None) for k in ("total_steps", "epoch", "epochs", "master_addr", "master_port")},
        "saved_step": saver.last_step,
        "saved_t": round(clock.now() - (now - saver.last_t), 3) if saver.last_t is not None else None,
        "world_size": round_.world_size if round_ is not None else board.spec.world_size,
        "nodes": [n.host for n in used],
        "spares": [n.host for n in board.nodes.healthy if n not in used] if round_ is not None else [],
        "ranks": [r.picture(now) for r in round_.ranks] if round_ is not None and ranks is None else ranks or [],
        "metrics": dict(board.metrics),
        "rate": round_.rate(now) if round_ is not None else None,
        "allocation_t": round(board.began_t, 3),
        "spent_s": round(board.budgets.spent_with_current_s(clock.now()), 1),
        "job_id": board.allocation.job_id,
        "leader_pid": os.getpid(),
        "leader_host": board.host,
    }


def _phase(board: Board) -> str:
    round_ = board.round
    if board.phase != "training" or round_ is None:
        return board.phase
    if board.interrupt is not None:
        return "stopping"
    phases = round_.tally.phases
    if "evaluate" in phases:
        return "evaluating"
    return "training" if phases <= {"train", "save", "script", "teardown"} else "starting"


def picture_every_s(ranks: int) -> float:
    """Seconds between two pictures of so many ranks: each tells every rank, which takes 10 µs of the event loop and 400 bytes."""
    return max(_PICTURE_S, ranks / _RANKS_A_SECOND)


def sample_every_s(ranks: int, held_s: float, round_s: float) -> float:
    """Seconds between two samples of so many ranks in a run that has held its nodes for ``held_s``, the round for ``round_s``.

    512 ranks would write 5 GB in a week of every ten seconds; this way it is 110 MB, and 3 more for each round of an hour. However many
    ranks there are, no more of them are written in a second than for pictures, 180 kB.
    """
    return max(_SAMPLES_S, picture_every_s(ranks), min(held_s * ranks / _SAMPLES_KEPT, round_s * _ROUND_PART))
