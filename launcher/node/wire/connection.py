"""The control plane's wire: TCP, one JSON object per line, after a mutual HMAC challenge on the run's secret.

The agent that connects speaks first. The answer, or its absence, shows whether the leader or another program listens on the
port, and nothing of the secret is given away::

    agent  → leader   {"type": "knock", "version": 2, "nonce": A}
    leader → agent    {"type": "challenge", "nonce": L, "proof": HMAC(secret, "leader" | life | host | port | A | L)}
    agent  → leader   {"type": "proof", "proof": HMAC(secret, "agent" | life | host | port | A | L)}

``life`` names one life of the allocation (job id and restart count). A new leader refuses an agent of an older life,
although that agent knows the secret. ``host`` is the leader's node and ``port`` the one that the agent dialled: a program on
another port that relays the challenge proves nothing. After that, lines are sent in blocks. Each block has a code, made from its number
and its text with a key of this connection and direction (`launcher.node.wire.proofs`): who relays a connection can end it, and no more.
Lines are not encrypted: they hold no secrets.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import resource
import secrets
import socket
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from launcher.errors import ProtocolError
from launcher.node.wire.handshake import Challenge, Greeting, Handshake, SecretProof
from launcher.node.wire.messages import Alive, Heard, Hub
from launcher.node.wire.proofs import MOST_BYTES, BlockCodes, LifeKey
from launcher.run.files import NO_JSON
from launcher.run.message_lines import decode_lines, encode
from launcher.run.records import Record

HANDSHAKE_S = 5.0
"""A peer that takes longer to prove itself is refused. A leader answers in milliseconds: it only hashes."""
_HANG_UP_S = 2.0
_MOST_UNPROVEN = 512
"""Most connections without proof, if there are fewer agents than this: all agents may connect at once."""
OWN_FILES = 128
"""Descriptors that strangers never get: the leader's files, the pipes of its commands."""
_BEFORE_COUNTED = 320
"""Connections that asyncio, which accepts a hundred in a turn, has accepted before the first of them is counted: 310 were seen."""
_WAITING = 4096
"""Connections that wait in the kernel to be accepted (Linux takes no more than net.core.somaxconn). asyncio's 100 are too few for a
thousand agents that dial at once: the kernel drops the others, and they try again after 1, 3 and 7 s."""
_AT_ONCE = 2**20
"""Bytes of one block, if no single message is larger."""

_Step = TypeVar("_Step", bound=Handshake)

Serve = Callable[[Hub], Awaitable[Callable[[], None]]]


def allocation_life(environ: Mapping[str, str]) -> str:
    """Return the name of this life of the allocation: the same in all its agents, another after a requeue."""
    job = environ.get("SLURM_JOB_ID") or environ.get("SUBMITIT_LOCAL_JOB_ID") or "local"
    return f"{job}.{environ.get('SLURM_RESTART_COUNT') or 0}"


class Peer:
    """One trusted connection; `Link` for the leader, the leader itself for an agent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._sent: BlockCodes
        self._received: BlockCodes
        self._queued = bytearray()
        self.local_address: str = (writer.get_extra_info("sockname") or ("",))[0]
        """This end's address, as the other end can reach it."""

    def send(self, message: Record) -> None:
        """Queue one message; never blocks, never raises: a dead peer shows at the reading end."""
        if not self._queued:
            asyncio.get_running_loop().call_soon(self._flush)
        line = _encoded(message)
        if len(line) > MOST_BYTES:  # the other end would take it for a stranger's
            print(
                f"A message of {len(line):,} bytes ({message.type}) is too large to send.", file=sys.stderr, flush=True
            )
            return
        if len(self._queued) + len(line) > MOST_BYTES:
            self._flush()
        self._queued += line
        if len(self._queued) > _AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        """Send all that was queued in this turn of the loop as one block."""
        lines, self._queued = bytes(self._queued), bytearray()
        if lines and not self._writer.is_closing():
            self._writer.write(self._sent.sign(lines))

    def close(self) -> None:
        """Send what is queued, then hang up."""
        self._flush()
        self._writer.close()

    def abort(self) -> None:
        """Hang up at once; what is queued is lost."""
        self._writer.transport.abort()

    async def hang_up(self) -> None:
        """`close`, and wait until what was queued has left this process, at most two seconds."""
        self.close()
        try:
            await asyncio.wait_for(self._writer.wait_closed(), _HANG_UP_S)
        except (OSError, asyncio.TimeoutError):
            self.abort()

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yield every message, in order, until the other end hangs up, or a block has a wrong code."""
        buffer = bytearray()
        while True:
            try:
                data = await self._reader.read(2**18)
            except OSError:
                return
            if not data:
                return
            buffer += data
            try:
                for lines in self._received.take(buffer):
                    for message in decode_lines(bytearray(lines)):
                        yield message
            except ProtocolError as error:
                print(f"{error} The connection is closed.", file=sys.stderr, flush=True)
                return

    async def prove_as_agent(self, key: LifeKey, port: int) -> None:
        """Speak first, on a connection to ``port``. Raises ProtocolError for a peer that is not the leader of this life."""
        mine = secrets.token_hex(16)
        self._say(Greeting(nonce=mine))
        answer = await self._handshake(Challenge)
        shared = port, mine, answer.nonce
        _check(answer.proof, key.derived("leader", *shared))
        self._say(SecretProof(proof=key.derived("agent", *shared).hex()))
        self._sent, self._received = _codes(key, "agent", shared), _codes(key, "leader", shared)

    async def prove_as_leader(self, key: LifeKey, port: int) -> None:
        """Answer, on a connection that came to ``port``. Raises ProtocolError for a peer that is no agent of this life."""
        theirs = (await self._handshake(Greeting)).nonce
        mine = secrets.token_hex(16)
        shared = port, theirs, mine
        self._say(Challenge(nonce=mine, proof=key.derived("leader", *shared).hex()))
        _check((await self._handshake(SecretProof)).proof, key.derived("agent", *shared))
        self._sent, self._received = _codes(key, "leader", shared), _codes(key, "agent", shared)

    def _say(self, step: Handshake) -> None:
        """Send one message of the challenge, which bears no code yet."""
        self._writer.write(encode(step.to_wire()))

    async def _handshake(self, kind: type[_Step]) -> _Step:
        """Read the next message of the challenge. Raises ProtocolError when it is no complete one of this ``kind``."""
        try:
            values = json.loads(await self._reader.readuntil(b"\n"))
            message = Handshake.read(values, []) if isinstance(values, dict) else None
        except (*NO_JSON, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            message = None
        if not isinstance(message, kind) or message.lacking():
            raise ProtocolError("The peer does not speak this protocol.")
        return message


_last: tuple[Record | None, bytes] = (None, b"")


def _encoded(message: Record) -> bytes:
    """Return the line of a message. An order to all nodes is one message: it is encoded once, and sent to one after the other."""
    global _last
    if _last[0] is not message:
        _last = message, encode(message.to_wire())
    return _last[1]


def _codes(key: LifeKey, sender: str, shared: tuple[object, ...]) -> BlockCodes:
    return BlockCodes(key.derived(f"{sender}-lines", *shared))


def _check(given: str, right: bytes) -> None:
    if not given.isascii() or not hmac.compare_digest(given, right.hex()):
        raise ProtocolError("The peer does not know this run's secret.")


def server(key: LifeKey, ports: Sequence[int], *, peers: int, local: bool = False) -> Serve:
    """Return the `serve` function of a leader: it binds the first free port and passes messages to a `Hub`.

    ``peers`` is how many agents there are. ``local`` listens on 127.0.0.1 alone. The awaited call raises ProtocolError when
    every candidate port is taken.
    """

    async def serve(hub: Hub) -> Callable[[], None]:
        tasks: set[asyncio.Task[None] | None] = set()
        unproven: dict[Peer, None] = {}
        most = _most_unproven(peers)
        sock = _listen(ports, local)
        port = sock.getsockname()[1]

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task, peer = asyncio.current_task(), Peer(reader, writer)
            tasks.add(task)
            if len(unproven) >= most:
                # The oldest has had the most time: an agent needs milliseconds, and tries again.
                oldest = next(iter(unproven))
                del unproven[oldest]
                oldest.abort()
            unproven[peer] = None

            async def prove() -> None:
                await peer.prove_as_leader(key, port)
                # In the same turn of the loop: in the next, a hundred strangers may be accepted.
                unproven.pop(peer, None)

            try:
                if await _in_time(prove(), peer):
                    await _serve_one(hub, peer)
            finally:
                unproven.pop(peer, None)
                tasks.discard(task)

        listening = await asyncio.start_server(accepted, sock=sock)
        sock.listen(_WAITING)

        def stop() -> None:
            listening.close()
            for task in filter(None, list(tasks)):
                task.cancel()

        return stop

    return serve


def _most_unproven(peers: int) -> int:
    """Return how many strangers may be connected: they never take what ``peers`` agents and the leader's files need."""
    free = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - peers - OWN_FILES - _BEFORE_COUNTED
    return max(8, min(max(_MOST_UNPROVEN, peers), free // 2))


async def _in_time(proof: Awaitable[None], peer: Peer) -> bool:
    """Return whether the peer proves in time that it is an agent of this life; hang up on one that does not."""
    try:
        await asyncio.wait_for(proof, HANDSHAKE_S)
    except (OSError, ProtocolError, asyncio.TimeoutError, asyncio.CancelledError):
        peer.abort()
        return False
    return True


async def _serve_one(hub: Hub, peer: Peer) -> None:
    hub.opened(peer)
    try:
        async for message in peer.messages():
            if message["type"] == Alive.type:
                peer.send(Heard())
            hub.received(peer, message)
        hub.closed(peer, "closed")
    except asyncio.CancelledError:
        hub.closed(peer, "stopped listening")
    except Exception:  # the hub failed: its traceback goes to the log, and this agent counts as gone
        traceback.print_exc()
        hub.closed(peer, "closed")
    finally:
        peer.close()


def _listen(ports: Sequence[int], local: bool) -> socket.socket:
    for port in ports:
        try:
            if local or not socket.has_dualstack_ipv6():
                return socket.create_server(("127.0.0.1" if local else "", port))
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError:
            continue
    lowest, highest = min(ports), max(ports)
    raise ProtocolError(f"Every port the leader may listen on is taken ({len(ports)} tried, {lowest} to {highest}).")
