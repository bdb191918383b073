"""A round's store on this node: it runs in a process of its own, and the leader is told how it does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from launcher.node.agent import logs
from launcher.node.forkserver.client import ForkServer, ForkServerError
from launcher.node.wire.messages import FromAgent, StoreEnded, StoreFailed, StoreReady
from launcher.run.message_lines import LOOPBACK_VARIABLE

STORE_MAIN = "launcher.training.process.serve_store:main"

Tell = Callable[[FromAgent], None]
"""Sends one message to the leader."""


class Store:
    """A round's store, in a process of its own, alive until this end of its socket closes.

    ``loopback``: all ranks are on this machine, and nobody else reaches it.
    """

    def __init__(self, server: ForkServer, run: str, round_: int, tell: Tell, *, loopback: bool) -> None:
        self._server = server
        self._run = run
        self._environment = {LOOPBACK_VARIABLE: "1"} if loopback else {}
        self._round = round_
        self._tell = tell
        self._port: int | None = None
        self._ending = self._gone = self._starting = False
        self._sock, self._theirs = socket.socketpair()
        self._sock.setblocking(False)

    async def start(self, log: Path, *, share: str) -> None:
        """Start it and tell the leader its port, or why there is none."""
        self._starting = True
        try:
            key, env = f"{self._run}.store.{self._round}", self._environment
            fork = partial(self._server.fork, key, self._round, STORE_MAIN, on_exit=self._exited, env=env)
            self._port = int((await first_answer(fork, log, self._sock, self._theirs, share=share))["port"])
        except (OSError, ForkServerError, ValueError) as error:
            lines = await asyncio.to_thread(logs.last_lines, log)
            if not self._ending:
                self._tell(StoreFailed(round=self._round, error=lines[-1] if lines else str(error)))
        else:
            self._report(self._port)
        finally:
            self._starting = False
            if self._ending:
                self._sock.close()

    def _exited(self, status: int) -> None:
        self._gone = True
        if self._port is not None:
            self._report(self._port)

    def _report(self, port: int) -> None:
        if not self._ending:
            self._tell(StoreEnded(round=self._round) if self._gone else StoreReady(round=self._round, port=port))

    def end(self) -> None:
        """Close its socket, which ends it; the fork server clears its round."""
        self._ending = True
        if not self._starting:
            self._sock.close()
            return
        # Closed while it is waited for, its number would stay in the selector, and deafen the next socket that gets it.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)


async def first_answer(
    fork: Callable[..., Awaitable[int]],
    log: Path,
    mine: socket.socket,
    theirs: socket.socket,
    *,
    share: str,
    within_s: float | None = None,
) -> dict[str, Any]:
    """Fork a process that logs to ``log`` and return the JSON object that it writes to its socket first.

    Raises OSError, ForkServerError, ValueError when it ends before that, and TimeoutError ``within_s`` after it was forked.
    """
    fd = await asyncio.to_thread(logs.open_log, log, share=share)
    try:
        await fork([fd, theirs.fileno()], cwd="/", pass_fd=True)
    finally:
        os.close(fd)
        theirs.close()
    answer: dict[str, Any] = json.loads(await asyncio.wait_for(_read_line(mine), within_s))
    return answer


async def _read_line(sock: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        data = await asyncio.get_running_loop().sock_recv(sock, 4096)
        if not data:
            raise ValueError("its process ended without an answer")
        line += data
    return line
