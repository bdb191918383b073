"""The worker's end of the line to its agent, and signals whose handlers strike while it sends."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.run.message_lines import Channel, decode_lines
from launcher.run.messages import WorkerFailure, WorkerMetrics

LARGE = {f"metric_{i}": 0.123456789012 for i in range(40_000)}
"""Beyond what a socket holds."""


@pytest.fixture
def line() -> Iterator[tuple[Channel, socket.socket]]:
    """A worker's channel and its agent's end; the handler of SIGUSR1 is as before afterwards."""
    before = signal.getsignal(signal.SIGUSR1)
    agent, mine = socket.socketpair()
    with agent, mine:
        yield Channel(mine), agent
    signal.signal(signal.SIGUSR1, before)


def heard(agent: socket.socket, count: int) -> list[dict[str, Any]]:
    """The next messages."""
    buffer, found = bytearray(), []
    agent.settimeout(60)
    while len(found) < count:
        buffer += agent.recv(1 << 20)
        found += decode_lines(buffer)
    return found


def strike_when_full(agent: socket.socket) -> threading.Thread:
    """Send this process SIGUSR1 once the channel has sent what the socket holds."""

    def strike() -> None:
        agent.recv(1, socket.MSG_PEEK)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    thread = threading.Thread(target=strike)
    thread.start()
    return thread


def test_a_message_behind_a_torn_one_is_heard(line: tuple[Channel, socket.socket]) -> None:
    """A handler raises in the middle of a line: the next line is one of its own."""
    channel, agent = line

    class Struck(Exception):
        pass

    def handler(*_: object) -> None:
        raise Struck

    signal.signal(signal.SIGUSR1, handler)
    thread = strike_when_full(agent)
    with pytest.raises(Struck):
        channel.send(WorkerMetrics(step=1, metrics=LARGE))
    thread.join()
    threading.Thread(target=channel.send, args=[WorkerFailure(step=2, message="told")]).start()

    assert [m["message"] for m in heard(agent, 1)] == ["told"]


def test_a_handler_may_send_while_its_thread_sends(line: tuple[Channel, socket.socket]) -> None:
    """It does not wait for itself: what it sends goes behind the line that is being sent."""
    channel, agent = line
    signal.signal(signal.SIGUSR1, lambda *_: channel.send(WorkerMetrics(step=2, metrics={})))
    thread = strike_when_full(agent)
    done: list[dict[str, Any]] = []

    def read() -> None:
        thread.join()
        with contextlib.suppress(OSError):
            done.extend(heard(agent, 2))

    reader = threading.Thread(target=read)
    reader.start()
    channel.send(WorkerMetrics(step=1, metrics=LARGE))
    reader.join()

    assert [m["step"] for m in done] == [1, 2]
