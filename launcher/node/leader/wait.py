"""Waits for the board to change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from launcher.node.leader.board import Board

_T = TypeVar("_T")


async def until(board: Board, look: Callable[[float], _T | None], *, timeout_s: float | None = None) -> _T | None:
    """Return what ``look(now)`` returns once that is not None; None when ``timeout_s`` have passed.

    Looks at every change and at every tick, since time alone can change the answer.
    """
    deadline = None if timeout_s is None else board.now() + timeout_s
    while True:
        board.changed.clear()
        found = look(board.now())
        if found is not None:
            return found
        if deadline is not None and board.now() >= deadline:
            return None
        pause = (
            board.timing.tick_s if deadline is None else min(board.timing.tick_s, max(0.001, deadline - board.now()))
        )
        # Not wait_for: before Python 3.12 it may swallow a cancellation.
        change = asyncio.ensure_future(board.changed.wait())
        try:
            await asyncio.wait({change}, timeout=pause)
        finally:
            change.cancel()
