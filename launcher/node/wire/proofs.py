"""What proves who is at the other end of a connection, and that each line comes from there. Pure.

Everything is HMAC-SHA256 (RFC 2104) with the run's secret: it is in the standard library, and allowed where FIPS 140 rules. TLS with
a pre-shared key would do as much; Python has that since 3.13 only.
"""

from __future__ import annotations

import hmac
import json
import random
from collections.abc import Sequence

from launcher.errors import ProtocolError
from launcher.frozen import frozen

PORTS_AT_ONCE = 16
"""Ports that an agent tries first: enough that other programs on some of them do no harm."""
_PORT_SETS = 4


@frozen
class LifeKey:
    """What the leader and the agents of one life of an allocation know, and nobody else."""

    secret: str
    """The run's."""
    life: str
    """Names the life: the job id and the restart count (`launcher.node.wire.connection.allocation_life`)."""
    leader: str
    """The name of the leader's node in the allocation."""

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


class LineCodes:
    """One direction of one connection: each line carries a code of its number and its text.

    A line that was changed, repeated, left out or moved, or that comes from another connection, has a wrong code.
    """

    def __init__(self, key: bytes) -> None:
        self._empty = hmac.new(key, digestmod="sha256")  # copied for each line: a third quicker than to begin anew
        self._number = 0

    def _code(self, text: bytes) -> bytes:
        code = self._empty.copy()
        code.update(self._number.to_bytes(8, "big"))
        code.update(text)
        self._number += 1
        return code.hexdigest()[:32].encode()

    def sign(self, line: bytes) -> bytes:
        """Return a ``line``, which ends with a newline, behind its code and a space."""
        return self._code(line[:-1]) + b" " + line

    def check(self, line: bytes) -> bytes:
        """Return the text of a signed ``line`` without its newline. Raises ProtocolError when its code is wrong."""
        code, _, text = line.partition(b" ")
        if not hmac.compare_digest(code, self._code(text)):
            raise ProtocolError("A line does not come from the peer that this connection was made with.")
        return text
