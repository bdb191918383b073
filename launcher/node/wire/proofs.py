"""What proves who is at the other end of a connection, and that all that comes is from there. Pure.

Everything is HMAC-SHA256 (RFC 2104) with the run's secret: it is in the standard library, and allowed where FIPS 140 rules. TLS with
a pre-shared key would do as much; Python has that since 3.13 only.
"""

from __future__ import annotations

import hmac
import json
import random
from collections.abc import Iterator, Sequence

from launcher.errors import ProtocolError
from launcher.frozen import frozen

PORTS_AT_ONCE = 16
"""Ports that an agent tries first: enough that other programs on some of them do no harm."""
_PORT_SETS = 4
MOST_BYTES = 64 * 2**20
"""A trusted peer may send much at once (stack frames, shard lists); a block beyond this is broken."""
_MOST_HEADER = 48
"""A code of 32 characters, a space, and the digits of `MOST_BYTES`."""


@frozen
class LifeKey:
    """What the leader and the agents of one life of an allocation know, and nobody else."""

    secret: str
    """The run's."""
    life: str
    """Names the life: the job id and the restart count (`launcher.node.wire.connection.allocation_life`)."""
    leader: str
    """The name of the leader's node in the allocation."""

    def __repr__(self) -> str:
        return type(self).__name__

    def derived(self, purpose: str, *values: object) -> bytes:
        """Return 32 bytes that only those who know the secret can make, others for each purpose and each of ``values``."""
        text = json.dumps([purpose, self.life, self.leader, *values])
        return hmac.digest(self.secret.encode(), text.encode(), "sha256")

    def candidate_ports(self, port_range: Sequence[int]) -> list[int]:
        """Return the ports that the leader tries in turn, out of the first to the last one of ``port_range``.

        Nobody without the secret knows them: somebody who wanted to take them all would have to take the whole range.
        """
        choice = range(port_range[0], port_range[-1] + 1)
        draw = random.Random(self.derived("ports"))  # noqa: S311 (the seed is what is secret)
        return draw.sample(choice, min(PORTS_AT_ONCE * _PORT_SETS, len(choice)))


class BlockCodes:
    """One direction of one connection: each block of lines carries a code of its number and its text.

    A block that was changed, repeated, left out or moved, or that comes from another connection, has a wrong code. What a program
    says at once is one block: a code for each line took 8 % of the leader's time with 250 nodes.
    """

    def __init__(self, key: bytes) -> None:
        self._empty = hmac.new(key, digestmod="sha256")  # copied for each block: a third quicker than to begin anew
        self._number = 0

    def _code(self, lines: bytes) -> bytes:
        code = self._empty.copy()
        code.update(self._number.to_bytes(8, "big"))
        code.update(lines)
        self._number += 1
        return code.hexdigest()[:32].encode()

    def sign(self, lines: bytes) -> bytes:
        """Return whole ``lines`` behind a line with their code and their size in bytes."""
        return b"%s %d\n%s" % (self._code(lines), len(lines), lines)

    def take(self, buffer: bytearray) -> Iterator[bytes]:
        """Take every whole block out of ``buffer`` and yield its lines. Raises ProtocolError when a code is wrong."""
        while (end := buffer.find(b"\n", 0, _MOST_HEADER)) >= 0:
            code, _, digits = bytes(buffer[:end]).partition(b" ")
            if not (digits.isdigit() and int(digits) <= MOST_BYTES):
                raise _foreign()
            begin, over = end + 1, end + 1 + int(digits)
            if len(buffer) < over:
                return
            lines = bytes(buffer[begin:over])
            del buffer[:over]
            if not hmac.compare_digest(code, self._code(lines)):
                raise _foreign()
            yield lines
        if len(buffer) >= _MOST_HEADER:
            raise _foreign()


def _foreign() -> ProtocolError:
    return ProtocolError("What came is not from the peer that this connection was made with.")
