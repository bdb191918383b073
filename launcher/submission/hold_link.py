"""A command's connection to the leader of a hold: the wire on which agents speak with it, and the same secret."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator

from launcher.errors import ProtocolError, StateError
from launcher.node.agent.description import resolve_host
from launcher.node.agent.read_run import read_run
from launcher.node.checkpoints import claims
from launcher.node.wire import connect, connection
from launcher.node.wire import messages as wire
from launcher.node.wire.proofs import LifeKey
from launcher.run import event_lines
from launcher.run.events import NodeJoined
from launcher.run.message_lines import MessageReader
from launcher.run.own_folder import require_own
from launcher.run.paths import RunPaths

_CONNECT_S = 10.0
"""A leader that has claimed its attempt listens within moments."""


class HoldLink:
    """A connection to the leader of a hold, for a command without an event loop. Made by `hold_link`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: connection.Peer) -> None:
        self._loop = loop
        self._peer = peer
        self._heard: asyncio.Queue[wire.ToAgent | None] = asyncio.Queue()
        self._reading = loop.create_task(self._read())

    def send(self, message: wire.FromAgent) -> None:
        """Send one message."""
        self._loop.call_soon(self._peer.send, message)
        self._loop.run_until_complete(asyncio.sleep(0))

    def receive(self, within_s: float) -> wire.ToAgent | None:
        """Return what the leader says next; None when it says nothing ``within_s``. Raises StateError when it has hung up."""
        try:
            said = self._loop.run_until_complete(asyncio.wait_for(self._heard.get(), within_s))
        except asyncio.TimeoutError:
            return None
        if said is None:
            self._heard.put_nowait(None)
            raise StateError("the connection to the hold was lost")
        return said

    async def _read(self) -> None:
        reader = MessageReader(wire.ToAgent, lambda _: None)
        async for values in self._peer.messages():
            if (said := reader.read(values)) is not None:
                self._heard.put_nowait(said)
        self._heard.put_nowait(None)

    def close(self) -> None:
        """Send what is queued, and hang up."""
        self._reading.cancel()
        self._loop.run_until_complete(asyncio.gather(self._reading, return_exceptions=True))
        self._loop.run_until_complete(self._peer.hang_up())


@contextlib.contextmanager
def hold_link(hold: RunPaths) -> Iterator[HoldLink]:
    """Connect to the leader of a hold, which has begun.

    Raises StateError where it cannot be reached from here, RunDirError where its files cannot be read.
    """
    require_own(hold.root)
    spec, secret, _ = read_run(hold)
    claim = claims.newest_claimant(hold)
    host, life = str(claim.get("host") or ""), str(claim.get("life") or "")
    key = LifeKey(secret, life, host)
    here = host.partition("/")[0] == socket.gethostname()
    if spec.batch == "local" and not here:
        raise StateError(f"{hold.id} runs on {host.partition('/')[0]}: run this command there")
    address = "127.0.0.1" if spec.batch == "local" else _address(hold, host)
    loop = asyncio.new_event_loop()
    try:
        finding = connect.find_leader(address, key.candidate_ports(spec.port_range), key, timeout_s=_CONNECT_S)
        try:
            peer = loop.run_until_complete(finding)
        except ProtocolError as error:
            first, last = spec.port_range
            raise StateError(
                f"{hold.id} cannot be reached from here ({str(error).rstrip('.')}): this machine must be able to connect to {host} on ports "
                f"{first} to {last}; run this command on a node of the cluster, as in launcher shell {hold.id}"
            ) from None
        link = HoldLink(loop, peer)
        try:
            yield link
        finally:
            link.close()
    finally:
        loop.close()


def _address(hold: RunPaths, host: str) -> str:
    """Return the leader's host by its name, or where this machine does not know that, by the address at which its nodes know it.

    That is known when its own agent has joined: it is waited for.
    """
    end = time.monotonic() + _CONNECT_S
    while not resolve_host(host):
        for event in event_lines.read(hold.events, NodeJoined):
            if isinstance(event, NodeJoined) and event.host == host and event.facts.get("address"):
                return str(event.facts["address"])
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    return host
