"""Queues the job of the next attempt, held, when training has begun (``restart.queue_early``): it ages in the queue meanwhile.

The end of this attempt at its time limit releases it (`launcher.node.leader.finish`), and nothing else does: a job that only waits
for this one would start after a cancel, too.
"""

from __future__ import annotations

from launcher.errors import SiteError
from launcher.node.leader.board import Board


async def queue_early(board: Board) -> None:
    """Queue it; a warning says why not."""
    try:
        job_id = await board.blocking(board.allocation.queue_early)
    except SiteError as error:
        board.history.warn(f"the job of the next attempt is not queued early: {error}")
        return
    board.history.event("queued_early", job_id=job_id)
