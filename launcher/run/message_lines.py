"""Messages as lines: encoding, decoding, and the worker's end of the socket pair to its agent."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from launcher.run.files import NO_JSON

if TYPE_CHECKING:  # whoever only needs the channel's name (a fork server) makes no class
    from launcher.run.messages import FromWorker
    from launcher.run.records import Record

FD_VARIABLE = "LAUNCHER_WORKER_FD"
LOOPBACK_VARIABLE = "LAUNCHER_STORE_LOOPBACK"
"""In the environment of a round's store whose workers are all on this machine."""

_write = json.JSONEncoder(separators=(",", ":"), default=str).encode

Message = TypeVar("Message", bound="Record")


def encode(message: dict[str, Any]) -> bytes:
    """Return one message as one line. Non-finite numbers go as Python's json writes them (both ends are Python)."""
    return (_write(message) + "\n").encode()


def decode_lines(buffer: bytearray) -> Iterator[dict[str, Any]]:
    """Take every whole line out of ``buffer``; lines that are not JSON objects with a type are dropped."""
    while (end := buffer.find(b"\n")) >= 0:
        line = bytes(buffer[:end])
        del buffer[: end + 1]
        try:
            value = json.loads(line)
        except NO_JSON:
            continue
        if isinstance(value, dict) and isinstance(value.get("type"), str):
            yield value


class MessageReader(Generic[Message]):
    """Reads the messages of one family.

    A message that lacks a required field is dropped. What could not be read is counted, and told once for each kind.
    """

    def __init__(self, family: type[Message], tell: Callable[[str], None]) -> None:
        self._family = family
        self._tell = tell
        self.unreadable: Counter[str] = Counter()
        """By kind: fields that were missing or of a wrong type."""

    def read(self, values: dict[str, Any]) -> Message | None:
        """Return the message that ``values`` are; None for an unknown kind and for one that lacks a required field."""
        problems: list[str] = []
        message = self._family.read(values, problems)
        if message is None:
            return None
        kind, lacking = message.type, message.lacking()
        if names := {*problems, *(f"{kind}.{name}" for name in lacking)}:
            if kind not in self.unreadable:
                effect = "the message is dropped" if lacking else "the rest of it is used"
                self._tell(f"{len(names)} field(s) of a message cannot be read ({', '.join(sorted(names))}): {effect}")
            self.unreadable[kind] += len(names)
        return None if lacking else message


class Channel:
    """The worker's end: blocking, and safe to send on from any thread. A child that the worker forks sends nothing.

    ``sock``: None outside a run, where nothing is sent. ``secrets``: values of variables passed by name, as the agent gave them: a
    script may change its environment. Whoever shortens a text takes them out before.
    """

    def __init__(self, sock: socket.socket | None, secrets: Sequence[str] = ()) -> None:
        self._sock = sock
        self.secrets = secrets
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._waiting: deque[bytes] = deque()
        self._sending = False
        self._torn = False
        """A signal's handler has raised while a line was sent: it may be there in part."""
        self._buffer = bytearray()

    def send(self, message: FromWorker) -> None:
        """Send one message. A dead agent raises nothing here: `receive` ends."""
        if self._sock is None or os.getpid() != self._pid:
            return
        data = encode(message.to_wire())
        self._waiting.append(data)
        with self._lock:
            if self._sending:
                return  # this is a signal's handler, inside that very call, which sends this, too
            self._sending = True
            try:
                while self._waiting:
                    line = self._waiting.popleft()
                    torn, self._torn = self._torn, True
                    self._sock.sendall(b"\n" + line if torn else line)
                    self._torn = False
            except OSError:
                self._waiting.clear()
            finally:
                self._sending = False

    def receive(self) -> Iterator[dict[str, Any]]:
        """Yield messages until the agent has ended."""
        while self._sock is not None:
            yield from decode_lines(self._buffer)
            try:
                data = self._sock.recv(65536)
            except OSError:
                return
            if not data:
                return
            self._buffer += data
