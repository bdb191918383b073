"""The agent's end of the socket pair to one worker."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from launcher.run.message_lines import decode_lines, encode


class WorkerChannel:
    """The agent's end of a worker's socket pair; never blocks the loop, however stuck the worker is."""

    def __init__(self, heard: Callable[[dict[str, Any]], None]) -> None:
        self._heard = heard
        self._in = bytearray()
        self._out = bytearray()
        self.sock, self.theirs = socket.socketpair()
        self.sock.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.sock, self.pump)
        self._open = True

    def pump(self) -> None:
        """Read and pass on everything that has arrived."""
        while self._open:
            try:
                data = self.sock.recv(2**18)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                return self.close()
            self._in += data
            for message in decode_lines(self._in):
                self._heard(message)

    def send(self, message: dict[str, Any]) -> None:
        """Queue one message."""
        self._out += encode(message)
        self._flush()

    def _flush(self) -> None:
        if not self._open:
            return
        try:
            while self._out:
                del self._out[: self.sock.send(self._out)]
        except BlockingIOError:
            self._loop.add_writer(self.sock, self._flush)
            return
        except OSError:
            self._out.clear()  # the worker has gone; its exit is told by the fork server
        self._loop.remove_writer(self.sock)

    def close(self) -> None:
        """Hang up; idempotent."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self.sock)
            self._loop.remove_writer(self.sock)
            self.sock.close()
        self.theirs.close()
