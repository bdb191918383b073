"""Both ends of the wire in one test: a hub that keeps what it hears, and a leader's end that listens."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from launcher.errors import ProtocolError
from launcher.node.wire import connection
from launcher.node.wire.proofs import LifeKey
from launcher.run.records import Record

KEY = LifeKey("ab" * 32, "7.0", "n0")
WAIT_S = 60.0


class Raw(Record):
    """A message of no known kind."""

    values: dict[str, Any]

    def to_wire(self) -> dict[str, Any]:
        """What is sent."""
        return self.values


class RecordingHub:
    """A leader that keeps what the transport tells it, and answers ``ask`` with ``answer``."""

    def __init__(self) -> None:
        self.links: list[Any] = []
        self.messages: list[dict[str, Any]] = []
        self.ends: list[str] = []
        self.changed = asyncio.Event()

    def opened(self, link: Any) -> None:
        """See `Hub`."""
        self.links.append(link)
        self.changed.set()

    def received(self, link: Any, message: dict[str, Any]) -> None:
        """See `Hub`."""
        self.messages.append(message)
        if message["type"] == "ask":
            link.send(Raw(values={"type": "answer", "n": message["n"]}))
        self.changed.set()

    def closed(self, link: Any, why: str) -> None:
        """See `Hub`."""
        self.ends.append(why)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for the transport to have brought ``condition`` about."""

        async def wait() -> None:
            while not condition():
                self.changed.clear()
                await self.changed.wait()

        await asyncio.wait_for(wait(), WAIT_S)


def free_port() -> int:
    """A port that nobody listened on a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@asynccontextmanager
async def serving(hub: RecordingHub, *, ports: list[int] | None = None) -> Any:
    """A leader's end of the wire, listening as long as the block lasts; yields its port."""
    for _ in range(50):  # a free port may be taken by somebody before we bind it
        chosen = ports or [free_port()]
        try:
            stop = await connection.server(KEY, chosen, peers=1, local=True)(hub)
            break
        except ProtocolError:
            if ports:
                raise
    try:
        yield chosen[0]
    finally:
        stop()


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run one test's coroutine, under a limit far beyond its need."""
    asyncio.run(asyncio.wait_for(main(), 120))  # type: ignore[arg-type]
