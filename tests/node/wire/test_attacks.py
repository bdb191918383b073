"""Somebody else on the same host attacks the control plane: another uid, real sockets, the real leader's end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import submit
from hypothesis import given
from hypothesis import strategies as st
from record_values import JSON, relaxed
from wire_ends import KEY, WAIT_S, Raw, RecordingHub, run, serving

from launcher.errors import ProtocolError
from launcher.node.wire import connect, connection
from launcher.node.wire.messages import StartRound
from launcher.node.wire.proofs import PORTS_AT_ONCE

ROUND = {"type": StartRound.type, "round": 0, "world_size": 1, "master_addr": "evil", "master_port": 1, "resume": None,
         "group_rank": 0, "workers": [{"rank": 0, "local_rank": 0}], "environment": {"PYTHONPATH": "/evil"}}  # fmt: skip


IDLE = """
import contextlib, itertools, os, resource, socket, sys, time
port, count = map(int, sys.argv[1:])
"".encode("idna")  # loaded while this user may still read it
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
held = []
for number in itertools.count(1):
    held = held[-count:]  # new ones for those that were closed
    with contextlib.suppress(OSError):
        held.append(socket.create_connection(("127.0.0.1", port), timeout=1))
    if number == count:
        print("all are held", flush=True)
    if number > count:
        time.sleep(0.001)
"""


@contextmanager
def idle_connections(port: int, count: int) -> Iterator[Callable[[], bytes]]:
    """Have another user (where this one may become it) hold ``count`` connections; yields what waits until they are there."""
    attacker = subprocess.Popen([sys.executable, "-c", IDLE, str(port), str(count)], stdout=subprocess.PIPE)
    assert attacker.stdout is not None
    try:
        yield attacker.stdout.readline
    finally:
        attacker.kill()
        attacker.wait()
        attacker.stdout.close()


@asynccontextmanager
async def relay(to: int, forward: Callable[[int, bytes], list[bytes]]) -> Any:
    """Pass on what a dialler and port ``to`` say; ``forward`` gets the number and the bytes of each of the leader's blocks.

    The challenge, a line, is number 0. Yields the port that it listens on.
    """

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def pump_blocks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in itertools.count():
            header = await reader.readline()
            if not header:
                break
            body = await reader.readexactly(int(header.split()[1])) if number else b""
            for data in forward(number, header + body):
                writer.write(data)
        writer.close()

    tasks = set()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        leader_reader, leader_writer = await asyncio.open_connection("127.0.0.1", to)
        try:
            await asyncio.gather(pump(reader, leader_writer), pump_blocks(leader_reader, writer))
        finally:
            for end in (writer, leader_writer):
                end.close()
                with contextlib.suppress(OSError):
                    await end.wait_closed()

    listening = await asyncio.start_server(accepted, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), WAIT_S)


def test_a_relay_on_another_port_proves_nothing() -> None:
    """Another program on a candidate port passes the challenge on to the leader: the proof names the leader's own port."""

    async def main() -> None:
        hub = RecordingHub()
        async with serving(hub) as port, relay(port, lambda number, line: [line]) as other:
            with pytest.raises(ProtocolError, match="does not know this run's secret"):
                await connect.connect("127.0.0.1", other, KEY)
        assert hub.links == []

    run(main)


INJECTED = json.dumps(ROUND).encode() + b"\n"
BARE = b"%s %d\n%s" % (b"0" * 32, len(INJECTED), INJECTED)


def with_code_of(block: bytes) -> bytes:
    """The injected order behind another block's code."""
    return block[:32] + BARE[32:]


@pytest.mark.parametrize(
    "second",
    [
        lambda block: [INJECTED],
        lambda block: [BARE],
        lambda block: [with_code_of(block)],
        lambda block: [block, block],
        lambda block: [block.replace(b'"n":1', b'"n":7')],
        lambda block: [],
    ],
    ids=["bare line", "bare", "with another's code", "repeated", "changed", "left out"],
)
def test_who_sits_on_the_network_can_end_a_connection_and_say_nothing(second: Any, capfd: Any) -> None:
    """Who relays the right port's connection and adds, changes, repeats or leaves out something has it closed: no order gets through."""

    def forward(number: int, block: bytes) -> list[bytes]:
        return second(block) if number == 2 else [block]  # the challenge, one answer, then this

    async def main() -> None:
        hub = RecordingHub()
        heard: list[Any] = []
        async with serving(hub) as port, relay(port, forward) as other:
            reader, writer = await asyncio.open_connection("127.0.0.1", other)
            peer = connection.Peer(reader, writer)
            await peer.prove_as_agent(KEY, port)
            for n in range(5):
                peer.send(Raw(values={"type": "ask", "n": n}))
                await hub.until(lambda n=n: len(hub.messages) > n)  # each answer is a block of its own
            async for message in peer.messages():
                heard.append(message.get("n", message["type"]))
                if len(heard) == 3:
                    break
            peer.abort()
        assert heard in ([0], [0, 1])
        assert "not from the peer that this connection was made with." in capfd.readouterr().err

    run(main)


def test_idle_connections_keep_no_agent_out() -> None:
    """Another user holds more connections than strangers may have: agents get in at once, and the leader can open its files."""
    most = 600  # above what asyncio may accept before the first is counted (connection._BEFORE_COUNTED)

    async def main() -> None:
        hub = RecordingHub()
        async with serving(hub) as port:
            with idle_connections(port, 2 * most) as held:
                assert await asyncio.wait_for(asyncio.to_thread(held), WAIT_S)
                for _ in range(5):
                    peer = await connect.find_leader("127.0.0.1", [port], KEY, timeout_s=WAIT_S)
                    with ExitStack() as files:
                        for _ in range(50):
                            files.enter_context(open("/dev/null", "rb"))
                    await peer.hang_up()
            # Behind what still waits to be accepted: a loop that is closed in the middle of that leaves sockets open.
            await (await connect.find_leader("127.0.0.1", [port], KEY, timeout_s=WAIT_S)).hang_up()
            await hub.until(lambda: len(hub.ends) == 6)

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        run(main)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_run_comes_to_its_end_beside_1500_idle_connections(tmp_path: Path) -> None:
    """Another user finds the leader's port and holds 1,500 connections to it all the time: the run completes."""
    attacked = submit(tmp_path, {}, 2, backend="local", resources={"nodes": 2, "tasks_per_node": 1})

    def port() -> int:
        ours = {process.pid for process in attacked.processes()}
        ends = (end for end in psutil.net_connections("tcp") if end.pid in ours and end.status == "LISTEN")
        return next((int(end.laddr.port) for end in ends if 20000 <= end.laddr.port <= 32000), 0)

    with idle_connections(attacked.wait("the leader listens", port), 1500) as held:
        assert held()
        assert attacked.outcome() is None
        assert attacked.wait_end()["state"] == "completed"
    attacked.wait_no_process()


def test_a_leader_goes_on_to_the_next_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ports that agents try first are taken: the leader listens on one of the next, and agents find it."""
    monkeypatch.setattr(connection, "HANDSHAKE_S", 0.2)

    async def main() -> None:
        hub = RecordingHub()
        with ExitStack() as stack:
            others = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(PORTS_AT_ONCE)]
            ports = [sock.getsockname()[1] for sock in others]
            with socket.create_server(("127.0.0.1", 0)) as probe:
                ports.append(probe.getsockname()[1])
            async with serving(hub, ports=ports):
                peer = await connect.find_leader("127.0.0.1", ports, KEY, timeout_s=WAIT_S)
                await peer.hang_up()

    run(main)


STEPS = st.lists(
    st.one_of(
        st.binary(max_size=300),
        st.fixed_dictionaries({"type": st.sampled_from(["knock", "proof", "challenge", "hello", 7]), "nonce": JSON, "proof": JSON})
        .map(lambda values: json.dumps(values).encode()),
        st.sampled_from([b'{"type":"knock","nonce":"\\ud800"}', b"[" * 50_000, b"9" * 50_000, b'{"a":' * 20_000]),
    ),
    max_size=4,
)  # fmt: skip


@pytest.mark.hypothesis
def test_whatever_answers_an_agent_is_no_leader() -> None:
    """Any bytes that another program answers with are a ProtocolError, or the network's error: the next port is tried."""

    async def dial(lines: list[bytes]) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.writelines([line.replace(b"\n", b"") + b"\n" for line in lines])
            writer.close()

        listening = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with listening:
            with pytest.raises((ProtocolError, OSError)):
                await connect.connect("127.0.0.1", listening.sockets[0].getsockname()[1], KEY)

    @relaxed
    @given(STEPS)
    def check(lines: list[bytes]) -> None:
        """One program."""
        asyncio.run(asyncio.wait_for(dial(lines), WAIT_S))

    check()


@pytest.mark.hypothesis
def test_nothing_that_a_stranger_says_gets_in_or_into_the_log(capfd: Any) -> None:
    """Any bytes, odd Unicode and deep nesting among them: no link, no fault in the leader's process, not a line in its log."""
    faults: list[Any] = []

    async def talk(lines: list[bytes]) -> None:
        hub = RecordingHub()
        async with serving(hub) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.writelines([line.replace(b"\n", b"") + b"\n" for line in lines])
            writer.write_eof()
            with contextlib.suppress(OSError):
                await reader.read()
            writer.close()
        assert (hub.links, hub.messages) == ([], [])

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))

        @relaxed
        @given(STEPS)
        def check(lines: list[bytes]) -> None:
            """One stranger."""
            loop = asyncio.new_event_loop()
            loop.set_exception_handler(lambda _, context: faults.append(context))
            loop.run_until_complete(asyncio.wait_for(talk(lines), WAIT_S))
            loop.close()

        await asyncio.to_thread(check)

    run(main)
    assert faults == []
    assert capfd.readouterr().err == ""
