"""The fork server with real processes: what workers find, how their ends are told, and that nothing outlives it."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.node.forkserver import client, proctable
from launcher.node.forkserver.child import GUARDED
from launcher.node.forkserver.client import MARK_VARIABLE, ForkServer, ForkServerError

WAIT_S = 120.0

WORKER = '''
import atexit, json, os, random, signal, subprocess, sys, threading, time

def report():
    main = sys.modules["__main__"]
    print(json.dumps({
        "cwd": os.getcwd(), "path0": sys.path[0], "argv": sys.argv, "x": os.environ.get("X"), "pwd": os.environ.get("PWD"),
        "sid": os.getsid(0), "pid": os.getpid(), "spec": getattr(main, "__spec__", None), "cpus": sorted(os.sched_getaffinity(0)),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "threads": threading.active_count(),
        "fd": os.environ.get("LAUNCHER_WORKER_FD"), "stdin": os.readlink("/proc/self/fd/0"),
        "open": sum("libffi" not in os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))}))

def returns_three(): return 3
def raises(): raise ValueError("out of paper")
def says_and_exits(): sys.exit("no such sample")
def kills_itself(): os.kill(os.getpid(), signal.SIGKILL)
def with_atexit():
    atexit.register(print, "atexit ran")
def sleeps():
    print("up", flush=True)
    while True: time.sleep(60)
def echoes():
    import socket
    channel = socket.socket(fileno=int(os.environ["LAUNCHER_WORKER_FD"]))
    while data := channel.recv(100): channel.sendall(data.upper())
def draws():
    import random
    print(random.random())
def without_output():
    sys.stdout = None
    return 3
def temporary():
    import tempfile
    os.environ["TMPDIR"] = os.getcwd()
    print(tempfile.gettempdir())
def imports():
    import parcel
    print(parcel.__file__)
def store(fd):
    os.write(fd, b'{"port": 7}\\n')
    os.read(fd, 1)
def pool():
    import multiprocessing as mp
    print(mp.get_start_method(allow_none=True), mp.current_process().name, mp.current_process().daemon)
    for method in ("fork", "spawn"):
        with mp.get_context(method).Pool(2) as workers:
            print(method, workers.map(abs, [-1, -2]))
    print(signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()))
def with_family():
    """A child in the group, one in a session of its own, and one that was orphaned on purpose."""
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["sleep", "1001"], start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True: time.sleep(60)
        os._exit(0)
    os.wait()
    print("up", flush=True)
    while True: time.sleep(60)
def family_then_fails():
    subprocess.Popen(["sleep", "1000"])
    os._exit(9)
'''


class Bench:
    """A fork server, a place for its workers' code and logs, and what it reported."""

    def __init__(self, place: Path, server: ForkServer | None = None) -> None:
        self.place = place
        (place / "their_work.py").write_text(WORKER)
        self.exits: dict[str, int] = {}
        self.changed = asyncio.Event()
        self.server = server or ForkServer(preload=["json"], environ=dict(os.environ))

    def heard(self, key: str, status: int) -> None:
        """`OnExit` of the worker ``key``."""
        assert key not in self.exits, f"{key} ended twice"
        self.exits[key] = status
        self.changed.set()

    async def fork(self, name: str, key: str = "w", round_: int = 0, **how: Any) -> int:
        """Fork one worker that runs ``name`` of the worker's code above, logging to ``KEY.log``."""
        log = os.open(self.place / f"{key}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        fds = [log, *how.pop("more_fds", [])]
        how = {"cwd": str(self.place), "env": {}, **how}
        try:
            return await self.server.fork(key, round_, f"their_work:{name}", fds, partial(self.heard, key), **how)
        finally:
            for fd in fds:
                os.close(fd)

    def log(self, key: str = "w") -> str:
        """What ``key`` wrote so far."""
        return (self.place / f"{key}.log").read_text()

    async def ended(self, key: str = "w") -> int:
        """Wait for the end of ``key``; its status."""
        await self.until(lambda: key in self.exits)
        return self.exits[key]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until ``condition`` holds; exits wake it, files are looked at often."""
        async with asyncio.timeout(WAIT_S) if sys.version_info >= (3, 11) else _no_limit():
            while not condition():
                self.changed.clear()
                try:
                    await asyncio.wait_for(self.changed.wait(), 0.02)
                except asyncio.TimeoutError:
                    pass

    def left(self) -> list[int]:
        """Pids of everything alive that came out of this fork server."""
        return alive(self.server._mark)


class _no_limit:
    async def __aenter__(self) -> None: ...
    async def __aexit__(self, *_: object) -> None: ...


def alive(mark: str) -> list[int]:
    """Every process of this machine with ``mark`` in its environment; zombies have none."""
    return [pid for pid in proctable.table() if proctable.marked(pid, f"{MARK_VARIABLE}={mark}".encode())]


@pytest.fixture
def bench(tmp_path: Path) -> Callable[[Callable[[Bench], Awaitable[None]]], None]:
    """Run a test's coroutine with a `Bench`; afterwards nothing of its fork server may be alive."""

    def run(body: Callable[[Bench], Awaitable[None]]) -> None:
        async def main() -> None:
            bench = Bench(tmp_path)
            try:
                bench.server.start()
                await body(bench)
            finally:
                await bench.server.stop()
            assert bench.left() == []

        asyncio.run(main())

    return run


def test_a_worker_finds_what_it_was_given(bench: Any, tmp_path: Path) -> None:
    """Directory, sys.path, environment, own session, no main module of ours, standard input and few descriptors."""

    async def body(b: Bench) -> None:
        pid = await b.fork("report", env={"X": "ü $(x)"})
        assert await b.ended() == 0
        import json

        said = json.loads(b.log())
        expected = {
            "cwd": str(tmp_path),
            "pwd": str(tmp_path),
            "path0": str(tmp_path),
            "argv": [""],
            "x": "ü $(x)",
            "sid": pid,
            "pid": pid,
        }
        assert {k: said[k] for k in expected} == expected
        assert said["spec"] is None
        assert said["stdin"] == "/dev/null"
        assert (said["threads"], said["fd"]) == (1, None)
        assert said["open"] <= 4  # standard streams and the listing itself; libffi 3.5 keeps its own file open
        assert said["blocked"] == sorted(GUARDED)

    bench(body)


@pytest.mark.parametrize("how", [{}, {"exec": True}], ids=["forked", "spawned"])
def test_a_worker_keeps_to_its_cpus(bench: Any, how: dict[str, Any]) -> None:
    """The kernel lets a worker that is given one CPU run on that one alone; one that is given none has them all."""
    import json

    mine = sorted(os.sched_getaffinity(0))

    async def body(b: Bench) -> None:
        await b.fork("report", "bound", cpus=mine[-1:], **how)
        await b.fork("report", "free", cpus=None, **how)
        assert (await b.ended("bound"), await b.ended("free")) == (0, 0)
        assert [json.loads(b.log(key))["cpus"] for key in ("bound", "free")] == [mine[-1:], mine]

    bench(body)


@pytest.mark.parametrize(
    ("name", "status", "text"),
    [
        ("returns_three", 3, ""),
        ("raises", 1, "ValueError: out of paper"),
        ("says_and_exits", 1, "no such sample"),
        ("kills_itself", -signal.SIGKILL, ""),
        ("with_atexit", 0, "atexit ran"),
        ("missing", 1, "AttributeError"),
        ("without_output", 3, ""),  # as libraries do to be quiet: Python minds no lack of a stream at its end
    ],
)
def test_ends_are_told_as_they_were(bench: Any, name: str, status: int, text: str) -> None:
    """Exit codes, exceptions, messages and signals arrive as a separate process would have had them."""

    async def body(b: Bench) -> None:
        await b.fork(name)
        assert await b.ended() == status
        assert text in b.log()

    bench(body)


def test_a_worker_can_use_multiprocessing(bench: Any) -> None:
    """Pools by fork and by spawn work in a forked worker, which looks like a main process and still has TERM blocked after them."""

    async def body(b: Bench) -> None:
        await b.fork("pool")
        assert await b.ended() == 0, b.log()
        assert b.log().splitlines() == ["None MainProcess False", "fork [1, 2]", "spawn [1, 2]", "True"]

    bench(body)


def said_by(
    place: Path, name: str, entry: str, *, preload: str = "json", more: dict[str, str] | None = None, **how: Any
) -> str:
    """What a worker that ends well wrote, from a fork server whose PYTHONPATH begins with ``entry``."""
    path = os.pathsep.join([entry, *filter(None, [os.environ.get("PYTHONPATH")])])

    async def body() -> str:
        environ = {**os.environ, "PYTHONPATH": path, **(more or {})}
        b = Bench(place, ForkServer(preload=[preload], environ=environ))
        b.server.start()
        try:
            await b.fork(name, **how)
            assert await b.ended() == 0, b.log()
            return b.log().strip()
        finally:
            await b.server.stop()

    return asyncio.run(body())


def test_a_worker_may_choose_its_temporary_folder(tmp_path: Path) -> None:
    """A script sets TMPDIR to its node's disk before it needs a file: what is imported before the fork (torch) has asked for the folder."""
    (tmp_path / "asks_early.py").write_text("import tempfile\ntempfile.gettempdir()\n")

    assert said_by(tmp_path, "temporary", str(tmp_path), preload="asks_early") == str(tmp_path)


@pytest.fixture
def parcel(tmp_path: Path) -> Path:
    """A module in a folder `src` of the worker's."""
    module = tmp_path / "src" / "parcel.py"
    module.parent.mkdir()
    module.touch()
    return module


@pytest.mark.parametrize("how", [{}, {"exec": True}], ids=["forked", "spawned"])
def test_a_relative_entry_of_pythonpath_leads_below_the_workers_folder(
    parcel: Path, tmp_path: Path, how: dict[str, Any]
) -> None:
    """`PYTHONPATH=src torchrun train.py` finds src/ beside train.py; the fork server itself is in another folder."""
    assert said_by(tmp_path, "imports", "src", **how) == str(parcel)


@pytest.mark.parametrize("how", [{}, {"exec": True}], ids=["forked", "spawned"])
def test_pythonsafepath_costs_no_entry_of_pythonpath(parcel: Path, tmp_path: Path, how: dict[str, Any]) -> None:
    """Python puts no folder of its own before PYTHONPATH then (3.11): its first entry was taken for that, and removed."""
    assert said_by(tmp_path, "imports", str(parcel.parent), more={"PYTHONSAFEPATH": "1"}, **how) == str(parcel)


def test_the_channel_reaches_the_worker(bench: Any) -> None:
    """The descriptor in LAUNCHER_WORKER_FD is the other end of the socket that was passed, in forked and in spawned workers."""

    async def body(b: Bench) -> None:
        for key, how in (("forked", {}), ("spawned", {"exec": True})):
            mine, theirs = socket.socketpair()
            mine.setblocking(False)
            await b.fork("echoes", key, more_fds=[theirs.detach()], **how)
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(mine, b"hello")
            assert await asyncio.wait_for(loop.sock_recv(mine, 100), WAIT_S) == b"HELLO"
            mine.close()
            assert await b.ended(key) == 0

    bench(body)


def test_a_store_gets_its_descriptor_as_argument(bench: Any) -> None:
    """``pass_fd`` calls main(fd); the process lives until that descriptor's other end closes."""

    async def body(b: Bench) -> None:
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        await b.fork("store", more_fds=[theirs.detach()], pass_fd=True)
        assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(mine, 100), WAIT_S) == b'{"port": 7}\n'
        assert b.exits == {}
        mine.close()
        assert await b.ended() == 0

    bench(body)


def test_spawned_workers_are_fresh_interpreters_with_the_same_ends(bench: Any) -> None:
    """``exec`` runs the same main in a new interpreter; its exit is told in the same way."""

    async def body(b: Bench) -> None:
        await b.fork("report", "a", exec=True)
        await b.fork("raises", "b", exec=True)
        assert (await b.ended("a"), await b.ended("b")) == (0, 1)
        assert '"path0": "' + str(b.place) in b.log("a")
        assert '"pwd": "' + str(b.place) in b.log("a")
        assert "ValueError: out of paper" in b.log("b")

    bench(body)


def test_a_steps_signals_pass_over_workers_and_server(bench: Any) -> None:
    """TERM, USR2 and INT, sent to the fork server while it imports and to a worker, end neither."""

    async def body(b: Bench) -> None:
        signals = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)
        for signum in signals:
            os.kill(b.server.pid or 0, signum)
        pid = await b.fork("sleeps")
        await b.until(lambda: "up" in b.log())
        for signum in signals:
            os.kill(b.server.pid or 0, signum)
            os.kill(pid, signum)
        await b.fork("returns_three", "next")
        assert await b.ended("next") == 3
        assert b.exits == {"next": 3}

    bench(body)


def test_a_script_gets_term_and_survives_usr2(bench: Any) -> None:
    """A script's worker hears TERM as under torchrun; USR2, which SLURM sends to every process, does not kill it."""

    async def body(b: Bench) -> None:
        pid = await b.fork("sleeps", script=True)
        await b.until(lambda: "up" in b.log())
        os.kill(pid, signal.SIGUSR2)
        await b.server.signal("w", signal.SIGTERM)
        assert await b.ended() == -signal.SIGTERM

    bench(body)


def test_stacks_are_dumped_on_urg(bench: Any) -> None:
    """SIGURG writes every thread's stack to the worker's log and the worker goes on; a stopped one is not woken."""

    async def body(b: Bench) -> None:
        pid = await b.fork("sleeps")
        await b.until(lambda: "up" in b.log())
        await b.server.signal("w", signal.SIGURG)
        await b.until(lambda: "most recent call first" in b.log())
        assert re.search(r"their_work\.py\", line \d+ in sleeps", b.log())
        os.kill(pid, signal.SIGSTOP)
        await b.server.signal("w", signal.SIGURG)
        await b.until(lambda: proctable.table()[pid].state == "T")
        assert b.exits == {}

    bench(body)


def test_clearing_a_round_leaves_nothing_of_it(bench: Any) -> None:
    """Workers, their children, other sessions and orphans of the round are gone; a later round's worker lives on."""

    async def body(b: Bench) -> None:
        for n in range(3):
            await b.fork("with_family", f"w{n}", round_=4)
        await b.fork("sleeps", "later", round_=5)
        for key in ("w0", "w1", "w2", "later"):
            await b.until(lambda key=key: "up" in b.log(key))
        await b.until(lambda: len(b.left()) >= 1 + 3 * 4 + 1)  # what was just executed has no environment to read
        await b.server.clear(4)
        assert sorted(b.left()) == sorted([b.server.pid, b.server.pid_of("later")])
        assert {b.exits[f"w{n}"] for n in range(3)} == {-signal.SIGKILL}
        assert "later" not in b.exits

    bench(body)


def test_a_failed_workers_group_goes_with_it(bench: Any) -> None:
    """When a worker fails its children are ended at once, before anybody clears the round."""

    async def body(b: Bench) -> None:
        await b.fork("family_then_fails")
        assert await b.ended() == 9
        await b.until(lambda: b.left() == [b.server.pid])

    bench(body)


def test_killing_the_fork_server_is_told_as_its_workers_ends(bench: Any) -> None:
    """kill -9 of the fork server: workers and their families vanish, are reported killed, and the next fork works."""

    async def body(b: Bench) -> None:
        for n in range(2):
            await b.fork("with_family", f"w{n}")
            await b.until(lambda n=n: "up" in b.log(f"w{n}"))
        first = b.server.pid or 0
        os.kill(first, signal.SIGKILL)
        assert (await b.ended("w0"), await b.ended("w1")) == (-signal.SIGKILL, -signal.SIGKILL)
        await b.fork("returns_three", "next", round_=1)
        assert await b.ended("next") == 3
        assert b.server.pid != first
        assert b.left() == [b.server.pid]

    bench(body)


def test_a_process_that_the_kernel_holds_keeps_nobody(bench: Any, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """State D (a GPU off the bus, a dead mount) outlasts SIGKILL: its end is told as if it had ended, and the agent can leave."""
    real = ForkServer._orphans
    held = proctable.Proc(2**30, os.getpid(), 1, "D", 0.0, 0)
    waited_s = [0.0]

    def orphans(self: ForkServer) -> list[proctable.Proc]:
        left = real(self)
        waited_s[0] += client._STUCK_S * (left == [])  # the others end when this machine gets to it
        return [*left, held]

    monkeypatch.setattr(ForkServer, "_orphans", orphans)
    monkeypatch.setattr(client, "time", SimpleNamespace(time=time.time, monotonic=lambda: waited_s[0]))

    async def body(b: Bench) -> None:
        await b.fork("with_family")
        await b.until(lambda: "up" in b.log())
        await asyncio.wait_for(b.server.stop(), WAIT_S)
        assert await b.ended() == -signal.SIGKILL

    bench(body)
    assert "killed, and not ended after 20 s: 1073741824 (state D)" in capfd.readouterr().err


def test_what_cannot_be_imported_is_told(tmp_path: Path) -> None:
    """A module that cannot be preloaded fails every fork with Python's own words; nothing hangs."""

    async def main() -> None:
        server = ForkServer(preload=["no_such_module_here"], environ=dict(os.environ))
        server.start()
        try:
            for _ in range(2):
                with pytest.raises(ForkServerError, match="No module named 'no_such_module_here'"):
                    await asyncio.wait_for(server.fork("w", 0, "os:getpid", [2], cwd="/", env={}), WAIT_S)
        finally:
            await server.stop()

    asyncio.run(main())


def test_many_forks_with_large_environments_at_once(bench: Any) -> None:
    """64 concurrent requests of 20 KB, more than a socket buffer, all arrive whole."""

    async def body(b: Bench) -> None:
        environ = {f"V{n}": "x" * 200 for n in range(100)}
        await asyncio.gather(*(b.fork("returns_three", f"w{n}", env=environ) for n in range(64)))
        await b.until(lambda: len(b.exits) == 64)
        assert set(b.exits.values()) == {3}

    bench(body)


AGENT = """
import asyncio, os, sys
from launcher.node.forkserver import proctable
from launcher.node.forkserver.client import ForkServer

async def main(place):
    proctable.become_subreaper()
    server = ForkServer(preload=["json"], environ=dict(os.environ))
    server.start()
    log = os.open(place + "/w.log", os.O_WRONLY | os.O_CREAT, 0o600)
    for n in range(3):
        await server.fork(f"w{n}", 0, "their_work:with_family", [log], cwd=place, env={})
    print(server._mark, flush=True)
    await asyncio.sleep(1000)

asyncio.run(main(sys.argv[1]))
"""


def test_kill_of_the_agent_leaves_nothing(tmp_path: Path) -> None:
    """kill -9 of the agent: fork server, workers, their children, other sessions and orphans all vanish."""
    (tmp_path / "their_work.py").write_text(WORKER)
    agent = subprocess.Popen([sys.executable, "-c", AGENT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert agent.stdout is not None
        mark = agent.stdout.readline().strip()
        _wait(lambda: (tmp_path / "w.log").read_text().count("up") == 3)
        _wait(lambda: len(alive(mark)) >= 1 + 3 * 4)  # one that is just being executed has no environment to read
        agent.kill()
        _wait(lambda: alive(mark) == [])
    finally:
        agent.kill()
        agent.wait()
        agent.stdout.close()


def test_kill_of_the_agent_while_the_server_imports(tmp_path: Path) -> None:
    """kill -9 of the agent before the fork server has finished importing takes the fork server with it."""
    (tmp_path / "slow_module.py").write_text("import time\ntime.sleep(1000)\n")
    code = AGENT.replace('preload=["json"]', 'preload=["slow_module"]').replace(
        "    server.start()\n", "    server.start()\n    print(server._mark, flush=True)\n"
    )
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    agent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environ
    )
    try:
        assert agent.stdout is not None
        mark = agent.stdout.readline().strip()
        _wait(lambda: len(alive(mark)) == 1)
        agent.kill()
        _wait(lambda: alive(mark) == [])
    finally:
        agent.kill()
        agent.wait()
        agent.stdout.close()


def _wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def test_a_server_that_cannot_be_started_again_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host allows no more processes, say: the round was told that its log could not be opened."""

    async def body() -> None:
        server = ForkServer(preload=["json"], environ=dict(os.environ))
        server.start()
        await server.ready()
        with monkeypatch.context() as patch:
            patch.setattr(client, "_START", "raise SystemExit")
            patch.setattr(client.subprocess, "Popen", refuse)
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
            while server._sock is not None:
                await asyncio.sleep(0.01)
            with pytest.raises(ForkServerError, match="cannot be started: Resource temporarily unavailable"):
                await server.ready()
        await server.ready()
        await server.stop()

    def refuse(*words: object, **how: object) -> object:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    asyncio.run(asyncio.wait_for(body(), WAIT_S))


def test_a_server_that_could_not_start_anew_can_the_next_time(tmp_path: Path) -> None:
    """An interpreter that this node does not have is told, and the one before works again; what is forked has the new environment."""
    (tmp_path / "shows.py").write_text(
        "import os\ndef main():\n    print(os.environ['COLOUR'], os.environ.get('MORE'), flush=True)\n"
    )

    async def body() -> None:
        server = ForkServer(preload=["json"], environ={**os.environ, "COLOUR": "red"})
        server.start()
        with pytest.raises(ForkServerError, match="/no/such/python cannot be started: No such file or directory"):
            await server.start_anew({**os.environ, "COLOUR": "blue"}, "/no/such/python")
        await server.start_anew({**os.environ, "COLOUR": "green"}, sys.executable)
        server.variables = {"MORE": "1"}
        log, ended = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT, 0o600), asyncio.Event()
        await server.fork("one", 0, "shows:main", [log], lambda _: ended.set(), cwd=str(tmp_path), env={})
        await asyncio.wait_for(ended.wait(), 30)
        os.close(log)
        await server.stop()

    asyncio.run(body())
    assert (tmp_path / "log").read_text() == "green 1\n"


def test_of_two_new_starts_at_once_one_server_is_left(tmp_path: Path) -> None:
    """A rerun that is stopped while its server is started anew leaves that to go on beside the next one's: a server was left over."""

    async def body() -> list[int]:
        server = ForkServer(preload=["json"], environ={**os.environ})
        server.start()
        await server.ready()
        for_two = (server.start_anew({**os.environ, "COLOUR": colour}, sys.executable) for colour in ("blue", "green"))
        await asyncio.gather(*for_two)
        await server.ready()
        assert server.environ["COLOUR"] == "green"
        servers = [p.pid for p in server._orphans() if p.ppid == os.getpid()]
        last = server.pid
        await server.stop()
        assert servers == [last]
        return servers

    assert asyncio.run(asyncio.wait_for(body(), WAIT_S))
