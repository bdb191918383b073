"""Connects to the leader: an agent, the keeper and commands dial its candidate ports until it answers on one of them."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence

from launcher.errors import ProtocolError
from launcher.node.wire.connection import HANDSHAKE_S, Peer
from launcher.node.wire.proofs import PORTS_AT_ONCE, LifeKey

_NEXT_ADDRESS_S = 0.25
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_RARELY_S = 4.0
"""How often an agent dials ports of the later sets, which a leader uses only when it could have none of the first."""
_LOOK_UP_AGAIN_S = 10.0


class _Name:
    """The addresses of a host. All ports share one lookup: with a dead first name server each takes glibc 5 s, as long as a handshake may."""

    def __init__(self, host: str) -> None:
        self.host = host
        self._lookup: asyncio.Future[list[str]] | None = None
        self._begun = 0.0

    async def addresses(self) -> list[str]:
        """Return them, looked up within the last seconds. Raises OSError."""
        if self._lookup is None or (self._lookup.done() and time.monotonic() - self._begun > _LOOK_UP_AGAIN_S):
            self._begun = time.monotonic()
            self._lookup = asyncio.ensure_future(self._look_up())
        found = self._lookup
        await asyncio.wait({found})
        return found.result()

    async def _look_up(self) -> list[str]:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(self.host, None, type=socket.SOCK_STREAM)
        except UnicodeError as error:
            raise OSError(f"{self.host} is no host name") from error
        return list(dict.fromkeys(str(one[4][0]) for one in found))


async def connect(host: str, port: int, key: LifeKey) -> Peer:
    """Connect to ``host:port``; both ends prove that they know the secret.

    Raises OSError when nothing listens there and ProtocolError when another program does.
    """
    return await _connect(_Name(host), port, key)


async def _connect(name: _Name, port: int, key: LifeKey) -> Peer:
    there, addresses = f"{name.host}:{port}", await name.addresses()
    try:
        reader, writer = await asyncio.wait_for(_open(addresses, port), HANDSHAKE_S)
    except asyncio.TimeoutError:
        raise TimeoutError(f"{there} does not answer") from None
    peer = Peer(reader, writer)
    if writer.get_extra_info("peername") == writer.get_extra_info("sockname"):
        # The kernel may choose the very port that is dialled, when it is free, as the local end's.
        peer.abort()
        raise ConnectionRefusedError(f"{there} is this process itself")
    try:
        await asyncio.wait_for(peer.prove_as_agent(key, port), HANDSHAKE_S)
    except asyncio.TimeoutError:
        peer.abort()
        raise ProtocolError(f"{there} does not answer the challenge: another program listens there.") from None
    except BaseException:
        peer.abort()
        raise
    return peer


async def _open(addresses: Sequence[str], port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address that answers: one that does not must not use up the time of the others. Raises OSError."""

    async def later(place: int, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        await asyncio.sleep(place * _NEXT_ADDRESS_S)
        return await asyncio.open_connection(address, port)

    tries = {asyncio.ensure_future(later(place, address)) for place, address in enumerate(addresses)}
    found: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] | None = None
    left = set(tries)
    try:
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                if found is None and one.exception() is None:
                    found = one
            if found is not None or not left:
                return (found or next(iter(done))).result()
        raise OSError("no address")
    finally:
        for one in tries - {found}:
            one.cancel()
        for end in await asyncio.gather(*(tries - {found}), return_exceptions=True):
            if isinstance(end, tuple):
                end[1].transport.abort()


async def find_leader(
    host: str, ports: Sequence[int], key: LifeKey, *, timeout_s: float, pause_s: float | None = None
) -> Peer:
    """Try all candidate ``ports``, again and again, until the leader answers on one of them. ``pause_s`` is the least pause between tries.

    The leader may start minutes after this node. A program that listens on one port and does not answer delays no other
    port. Raises ProtocolError when ``timeout_s`` have passed.
    """
    name, problem = _Name(host), "nobody answers"
    over = False

    async def dial(place: int, port: int) -> Peer:
        nonlocal problem
        later = place // PORTS_AT_ONCE
        least_s, longest_s = (_RARELY_S, _RARELY_S) if later else (_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        wait_s = max(least_s, pause_s or 0.0)
        await asyncio.sleep(later * HANDSHAKE_S)
        # Beside `cancel`: before Python 3.12 `asyncio.wait_for` swallows a cancellation that comes in the very moment in
        # which the connection is refused, and this would dial for ever.
        while not over:
            try:
                return await _connect(name, port, key)
            except (OSError, ProtocolError) as error:
                problem = str(error)
            await asyncio.sleep(wait_s)
            wait_s = max(wait_s, min(wait_s * 1.3, longest_s))
        raise asyncio.CancelledError

    found: Peer | None = None
    dials = [asyncio.ensure_future(dial(place, port)) for place, port in enumerate(ports)]
    try:
        done, _ = await asyncio.wait(dials, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if done:
            found = done.pop().result()
            return found
    finally:
        over = True
        for each in dials:
            each.cancel()
        for end in await asyncio.gather(*dials, return_exceptions=True):
            if isinstance(end, Peer) and end is not found:
                end.abort()
    raise ProtocolError(
        f"The leader on {host} did not answer on ports {min(ports)}-{max(ports)} within {timeout_s:.0f} s ({problem})."
    )


async def answers(host: str, ports: Sequence[int], key: LifeKey) -> bool:
    """Return whether the leader of this life answers on one of its candidate ``ports`` now. Never raises for the network."""
    name = _Name(host)
    tries = [_connect(name, port, key) for port in ports]
    found = [end for end in await asyncio.gather(*tries, return_exceptions=True) if isinstance(end, Peer)]
    for peer in found:
        peer.abort()
    return bool(found)
