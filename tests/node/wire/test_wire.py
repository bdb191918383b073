"""The wire: who is let in, who is told from a stranger, and that messages arrive whole and in order."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from contextlib import ExitStack
from typing import Any

import pytest
from wire_ends import KEY, WAIT_S, Raw, RecordingHub, free_port, run, serving

from launcher.errors import ProtocolError
from launcher.node.wire import connect, connection
from launcher.node.wire.proofs import LifeKey


def test_both_sides_prove_the_secret_and_messages_arrive_in_order() -> None:
    """A peer that knows the secret is let in; a thousand messages arrive whole, in order, both ways."""

    async def main() -> None:
        hub = RecordingHub()
        async with serving(hub) as port:
            peer = await connect.connect("127.0.0.1", port, KEY)
            for n in range(1000):
                peer.send(Raw(values={"type": "ask", "n": n, "text": "x" * 300}))
            answers = []
            async for message in peer.messages():
                answers.append(message["n"])
                if len(answers) == 1000:
                    break
            assert answers == list(range(1000))
            assert [m["n"] for m in hub.messages] == list(range(1000))
            await peer.hang_up()
            await hub.until(lambda: bool(hub.ends))
            assert hub.ends == ["closed"]

    run(main)


@pytest.mark.parametrize(
    "key",
    [
        LifeKey("cd" * 32, "7.0", "n0"),
        LifeKey("ab" * 32, "7.1", "n0"),
        LifeKey("ab" * 32, "7.0", "n1"),
        LifeKey("", "7.0", "n0"),
    ],
    ids=["secret", "life", "leader", "empty"],
)
def test_a_wrong_secret_or_an_older_life_is_a_stranger(key: LifeKey) -> None:
    """Another run's secret, or the same run's earlier allocation, is refused and never reaches the leader."""

    async def main() -> None:
        hub = RecordingHub()
        async with serving(hub) as port:
            with pytest.raises(ProtocolError, match="does not know this run's secret"):
                await connect.connect("127.0.0.1", port, key)
        assert hub.links == []

    run(main)


def test_a_peer_that_cannot_prove_itself_is_hung_up_on() -> None:
    """A dialler that answers the challenge wrongly, or with noise, is closed and the leader never hears of it.

    Nothing in the leader's process fails over it: a line of 50,000 brackets is more than Python's json can read.
    """
    faults: list[Any] = []

    async def dial(port: int, lines: list[bytes]) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.writelines(lines)
        rest = b""
        try:
            rest = await reader.read()
        except ConnectionError:
            pass
        writer.close()
        return rest

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        hub = RecordingHub()
        async with serving(hub) as port:
            knock = json.dumps({"type": "knock", "nonce": "00"}).encode() + b"\n"
            forged = json.dumps({"type": "proof", "proof": "00" * 32}).encode() + b"\n"
            nested = b"[" * 50_000 + b"\n"
            for lines in ([b"GET / HTTP/1.1\r\n\r\n"], [knock, forged], [b"\x00" * 100_000], [b"[]\n"], [nested]):
                await asyncio.wait_for(dial(port, lines), connection.HANDSHAKE_S)
            hello = json.dumps({"type": "hello", "node": 0}).encode() + b"\n"
            await dial(port, [hello])
        assert (hub.links, hub.messages) == ([], [])

    run(main)
    assert faults == []


def test_the_leaders_proof_cannot_be_reflected() -> None:
    """A stranger that plays an agent's own words back does not pass for the leader."""

    async def main() -> None:
        ended = asyncio.Event()

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            knock = json.loads(await reader.readline())
            writer.write(
                json.dumps({"type": "challenge", "nonce": knock["nonce"], "proof": knock["nonce"]}).encode() + b"\n"
            )
            await reader.read()
            writer.close()
            ended.set()

        listening = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        with pytest.raises(ProtocolError, match="secret"):
            await connect.connect("127.0.0.1", port, KEY)
        await asyncio.wait_for(ended.wait(), WAIT_S)
        listening.close()

    run(main)


def test_a_silent_stranger_is_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener that accepts and says nothing is given up when the time for a handshake is over."""
    monkeypatch.setattr(connection, "HANDSHAKE_S", 0.2)

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as stranger, pytest.raises(ProtocolError, match="another program"):
            await connect.connect("127.0.0.1", stranger.getsockname()[1], KEY)

    run(main)


def test_the_leader_is_found_on_the_second_port_after_starting_late() -> None:
    """Candidates are tried until the leader listens: first port taken by a stranger, leader there only later."""

    async def main() -> None:
        hub = RecordingHub()
        strangers = asyncio.Event()

        def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()
            strangers.set()

        noise = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        held = socket.socket()  # bound and not listening: ours until the leader takes it, and refused until then
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        ports = [noise.sockets[0].getsockname()[1], held.getsockname()[1]]
        search = asyncio.create_task(connect.find_leader("127.0.0.1", ports, KEY, timeout_s=WAIT_S))
        await asyncio.wait_for(strangers.wait(), WAIT_S)
        assert not search.done()
        async with serving(hub, ports=ports):
            peer = await search
            peer.send(Raw(values={"type": "hello"}))
            await hub.until(lambda: len(hub.messages) == 1)
            await peer.hang_up()
        held.close()
        noise.close()

    run(main)


def test_no_leader_at_all_is_one_sentence() -> None:
    """When nobody answers in time the error names host and ports."""

    async def main() -> None:
        with pytest.raises(ProtocolError, match=r"The leader on 127\.0\.0\.1 did not answer on ports"):
            await connect.find_leader("127.0.0.1", [free_port()], KEY, timeout_s=0.2)

    run(main)


def test_all_ports_taken_is_one_sentence() -> None:
    """A leader that finds every candidate port taken says so."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as stranger:
            serve = connection.server(KEY, [stranger.getsockname()[1]], peers=1, local=True)
            failed = await asyncio.gather(serve(RecordingHub()), return_exceptions=True)
        assert "Every port the leader may listen on is taken" in str(failed[0])

    run(main)


def test_sending_to_a_dead_peer_raises_nothing() -> None:
    """`send` after the other end is gone is silent; the reading end says ``closed``, once."""

    async def main() -> None:
        hub = RecordingHub()
        async with serving(hub) as port:
            peer = await connect.connect("127.0.0.1", port, KEY)
            await hub.until(lambda: bool(hub.links))
            peer.abort()
            await hub.until(lambda: bool(hub.ends))
            for _ in range(10):
                hub.links[0].send(Raw(values={"type": "x", "text": "y" * 100_000}))
                await asyncio.sleep(0)
        assert hub.ends == ["closed"]

    run(main)


def test_a_life_is_named_by_job_and_restart() -> None:
    """A requeue keeps the job id and raises the restart count: another life."""
    lives = [
        connection.allocation_life({"SLURM_JOB_ID": "7"}),
        connection.allocation_life({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}),
        connection.allocation_life({"SUBMITIT_LOCAL_JOB_ID": "55"}),
        connection.allocation_life({}),
    ]

    assert lives == ["7.0", "7.1", "55.0", "local.0"]


def test_a_silent_stranger_holds_up_no_other_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates are dialled side by side: one that swallows the challenge, for an hour here, does not delay the leader on another."""
    monkeypatch.setattr(connect, "HANDSHAKE_S", 3600.0)

    async def main() -> None:
        hub = RecordingHub()
        with socket.create_server(("127.0.0.1", 0)) as stranger:
            port = stranger.getsockname()[1]
            async with serving(hub) as leaders:
                peer = await connect.find_leader("127.0.0.1", [port, leaders], KEY, timeout_s=WAIT_S)
                await peer.hang_up()

    run(main)


def test_only_a_leader_of_this_life_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a kernel that accepts for a process that stands still, nor another life's leader, nor a closed port."""

    async def main() -> None:
        hub = RecordingHub()
        with socket.create_server(("127.0.0.1", 0)) as frozen:
            port = frozen.getsockname()[1]
            async with serving(hub) as leader:
                assert await connect.answers("127.0.0.1", [leader], KEY)
                assert not await connect.answers("127.0.0.1", [leader], LifeKey("ab" * 32, "7.1", "n0"))
                monkeypatch.setattr(connection, "HANDSHAKE_S", 0.2)
                assert not await connect.answers("127.0.0.1", [port], KEY)
                await hub.until(lambda: hub.ends == ["closed"])
        assert not await connect.answers("127.0.0.1", [leader], KEY)
        assert hub.messages == []

    run(main)


def test_a_fault_in_the_leader_closes_only_that_connection(capsys: pytest.CaptureFixture[str]) -> None:
    """When the hub fails over a message, its trace is written, ``closed`` follows, and others are still served."""

    class Faulty(RecordingHub):
        def received(self, link: Any, message: dict[str, Any]) -> None:
            if message["type"] == "bad":
                raise KeyError("round")
            super().received(link, message)

    async def main() -> None:
        hub = Faulty()
        async with serving(hub) as port:
            bad = await connect.connect("127.0.0.1", port, KEY)
            good = await connect.connect("127.0.0.1", port, KEY)
            bad.send(Raw(values={"type": "bad"}))
            await hub.until(lambda: hub.ends == ["closed"])
            good.send(Raw(values={"type": "fine"}))
            await hub.until(lambda: [m["type"] for m in hub.messages] == ["fine"])
            await good.hang_up()
            await bad.hang_up()

    run(main)
    assert "KeyError: 'round'" in capsys.readouterr().err


def test_a_dial_that_swallows_its_end_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found on one port, the leader is there, although another dial took its cancellation for a refused connection.

    Before Python 3.12 `asyncio.wait_for` does so when both come in the same moment; a node was lost to it once.
    """
    found = object()

    async def dial(name: object, port: int, key: LifeKey) -> object:
        if port == 1:
            await asyncio.sleep(0.05)
            return found
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            raise ConnectionRefusedError from None
        return None

    monkeypatch.setattr(connect, "_connect", dial)

    async def look() -> object:
        return await asyncio.wait_for(connect.find_leader("h", [1, 2, 3], KEY, timeout_s=300), 120)

    assert found is asyncio.run(look())


def test_an_address_that_does_not_answer_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader's name with two addresses, the first one a black hole (a management network): the second is dialled beside it."""
    monkeypatch.setattr(connect, "HANDSHAKE_S", 3600.0)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        hub = RecordingHub()
        with socket.socket() as hole, ExitStack() as queue:
            hole.bind(("127.0.0.2", 0))
            hole.listen(0)
            for _ in range(4):  # its queue is full: the kernel answers no further connection
                waiting = queue.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(hole.getsockname())
            port = hole.getsockname()[1]

            async def both(*_: Any, **__: Any) -> list[Any]:
                kind = socket.AF_INET, socket.SOCK_STREAM, 6, ""
                return [(*kind, ("127.0.0.2", port)), (*kind, ("127.0.0.1", port))]

            monkeypatch.setattr(loop, "getaddrinfo", both)
            async with serving(hub, ports=[port]):
                peer = await asyncio.wait_for(connect.connect("leader", port, KEY), WAIT_S)
                await peer.hang_up()

    run(main)


def test_what_is_too_large_is_not_sent(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """The other end would take it for a stranger's and hang up: it is left out, with a sentence, and the rest goes on."""
    monkeypatch.setattr(connection, "MOST_BYTES", 1000)

    async def main() -> None:
        hub = RecordingHub()
        async with serving(hub) as port:
            peer = await connect.connect("127.0.0.1", port, KEY)
            peer.send(Raw(values={"type": "ask", "n": "x" * 1000}))
            peer.send(Raw(values={"type": "ask", "n": 1}))
            await hub.until(lambda: hub.messages)
            assert [message["n"] for message in hub.messages] == [1]
            await peer.hang_up()
        assert "is too large to send" in capfd.readouterr().err

    run(main)


def test_a_slow_name_service_uses_up_no_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead first name server takes glibc 5 s, as long as a handshake may: no dial ever got through. All ports share one lookup."""
    asked: list[object] = []
    ask = socket.getaddrinfo

    def slowly(host: Any, *words: Any, **how: Any) -> Any:
        if host == "leader-node":
            asked.append(host)
            time.sleep(0.4)
            host = "127.0.0.1"
        return ask(host, *words, **how)

    monkeypatch.setattr(socket, "getaddrinfo", slowly)
    monkeypatch.setattr(connect, "HANDSHAKE_S", 0.2)

    async def main() -> None:
        ports = [free_port() for _ in range(8)]
        async with serving(RecordingHub(), ports=ports[-1:]):
            peer = await connect.find_leader("leader-node", ports, KEY, timeout_s=WAIT_S)
            await peer.hang_up()

    run(main)
    assert len(asked) == 1
