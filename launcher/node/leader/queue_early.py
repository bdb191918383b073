"""Queues the job of the next attempt, held, when training has begun (``restart.queue_early``): it ages in the queue meanwhile.

The end of this attempt at its time limit releases it (`launcher.node.leader.finish`), and nothing else does: a job that only waits
for this one would start after a cancel, too.
"""

from __future__ import annotations

import asyncio

from launcher.errors import SiteError
from launcher.node.allocation.allocation import NotAnsweredError
from launcher.node.leader.board import Board

_AGAIN_S = 60.0
"""SLURM that does not answer is asked again."""


async def queue_early(board: Board) -> None:
    """Queue it; a warning says why that cannot be."""
    while board.phase != "ended":
        try:
            job_id = await board.blocking(board.allocation.queue_early)
            board.history.event("queued_early", job_id=job_id)
            return
        except NotAnsweredError:
            await asyncio.sleep(_AGAIN_S)
        except SiteError as error:
            board.history.warn(f"the job of the next attempt is not queued early: {error}")
            return
