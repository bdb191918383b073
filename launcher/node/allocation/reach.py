"""Whether another host of the job can be reached at all."""

from __future__ import annotations

import socket
from collections.abc import Sequence


def host_answers(host: str, ports: Sequence[int]) -> bool:
    """Whether the kernel of ``host`` accepts or refuses connections, whatever its processes do.

    Three of the ports are tried, a second each: TCP sends a lost SYN again only after a second.
    """
    for port in ports[:3]:
        try:
            with socket.create_connection((host, port), timeout=1.0):
                return True
        except ConnectionRefusedError:
            return True
        except OSError:
            continue
    return False
