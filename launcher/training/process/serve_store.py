"""A round's TCPStore, in a process of its own: bound before it is announced, so that a port can never clash."""

from __future__ import annotations

import contextlib
import json
import os


def main(fd: int) -> None:
    """Serve a store on a free port, write ``{"port": n}`` and a newline to ``fd``, live until ``fd`` ends.

    ``fd`` is one end of a socket pair. Raises OSError or RuntimeError when no store can be bound.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # The host name is where the master itself connects to; it listens on every interface.
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    os.write(fd, (json.dumps({"port": store.port}) + "\n").encode())
    with contextlib.suppress(OSError):
        while os.read(fd, 4096):
            pass
