"""A round's TCPStore, in a process of its own: bound before it is announced, so that a port can never clash."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from functools import partial

from launcher.run.message_lines import LOOPBACK_VARIABLE


def main(fd: int) -> None:
    """Serve a store on a free port, write ``{"port": n}`` and a newline to ``fd``, live until ``fd`` ends.

    ``fd`` is one end of a socket pair. With ``LAUNCHER_STORE_LOOPBACK`` set only this machine reaches it.
    Raises OSError or RuntimeError when no store can be bound.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # The host name is where the master itself connects to; torch listens on every interface unless it is given a socket.
    if LOOPBACK_VARIABLE in os.environ:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port, own = listening.getsockname()[1], listening.detach()
        serve = partial(TCPStore, "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=own)
        try:
            store = serve()
        except NotImplementedError:  # torch 2.6: libuv's server takes no socket, and that before it does
            store = serve(use_libuv=False)
    else:
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    os.write(fd, (json.dumps({"port": store.port}) + "\n").encode())
    with contextlib.suppress(OSError):
        while os.read(fd, 4096):
            pass
