"""Retries what a run's folder does not answer, in threads, while the leader's loop goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Protocol, TypeVar

from launcher.run.asking import AGAIN_S, PATIENCE_S, NotAskedError, ask_once

_T = TypeVar("_T")


class Blocking(Protocol):
    """Runs a blocking function in a thread, so that the leader's loop goes on: `asyncio.to_thread`."""

    def __call__(self, work: Callable[[], _T], /) -> Awaitable[_T]:
        """Return what ``work`` returns."""


async def until_answered(
    blocking: Blocking,
    work: Callable[[], _T],
    root: Path,
    *,
    enough: Callable[[], bool] = lambda: False,
    refused: Callable[[OSError], None] = lambda error: None,
    also: Collection[int] = (),
) -> _T:
    """Return what ``work`` returns from a thread; it is retried while the folder ``root`` does not answer.

    ``refused`` hears of the first time. Raises NotAskedError after `PATIENCE_S`, or once there is ``enough`` of it; another
    OSError at once, unless its number is in ``also``.
    """
    now = asyncio.get_running_loop().time
    end, told = now() + PATIENCE_S, False
    while True:
        try:
            return await blocking(lambda: ask_once(work, root))
        except OSError as error:
            passes = isinstance(error, NotAskedError) or error.errno in also
            if not passes or enough() or now() >= end:
                raise
            if not told:
                told = True
                refused(error)
        await asyncio.sleep(AGAIN_S)
