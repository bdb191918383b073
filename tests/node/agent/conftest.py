"""A fake leader over the real wire, and agents as real processes whose workers are small programs without torch."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.errors import ProtocolError
from launcher.node.forkserver import proctable
from launcher.node.wire import connection
from launcher.node.wire.messages import ToAgent, Welcome
from launcher.node.wire.proofs import LifeKey
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec, Work

sys.path.insert(0, str(Path(__file__).parent))
WAIT_S = 240.0
SECRET = "5a" * 32
KEY = LifeKey(SECRET, "test.0", "first")

WORK = '''
"""What the agents' workers do in these tests, told by the one variable that a round's order sets."""
import json, os, signal, socket, subprocess, sys, time
from launcher.run.message_lines import Channel
from launcher.run.messages import FromWorker

class Link(Channel):
    def send(self, kind, **values):
        super().send(FromWorker.kinds[kind](**values))

def channel():
    return Link(socket.socket(fileno=int(os.environ.pop("LAUNCHER_WORKER_FD"))))

def main():
    do = os.environ.get("MLFLOW_RUN_ID", "finish")
    link = channel()
    link.send("hello", pid=os.getpid())
    return globals()[do](link)

def finish(link):
    print("done")
    link.send("finished", step=3, saved=True)

def environment(link):
    print("cwd", os.getcwd(), sys.path[0], "cpus", *sorted(os.sched_getaffinity(0)))
    link.send("warning", text=json.dumps(dict(os.environ)))

def wait(link):
    link.send("phase", name="train")
    while True: time.sleep(60)

def family(link):
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["sleep", "1001"], start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            while True: time.sleep(60)
        os._exit(0)
    os.wait()
    wait(link)

def echo(link):
    link.send("phase", name="train")
    for message in link.receive():
        link.send("warning", text=message["text"])
        if message["type"] == "leave": return 0

def fail(link):
    for n in range(30): print("line", n)
    link.send("progress", step=7)
    raise ValueError("out of paper")

def leak(link):
    print("login of", os.environ["LOGIN"])
    link.send("warning", text="slow login of " + os.environ["LOGIN"])
    link.send("failed", exception="ValueError", message="no " + os.environ["LOGIN"], frames=[], caused_by=["KeyError: hf_" + "aB1" * 11])
    os._exit(1)

def term(link):
    heard = []
    signal.signal(signal.SIGTERM, lambda *_: heard.append(time.time()))
    link.send("phase", name="script")
    while not heard: time.sleep(0.01)
    time.sleep(0.3)
    link.send("warning", text=f"TERM {len(heard)}")
    return 0

def many(link):
    for n in range(500): link.send("metrics", step=n, metrics={})
    os._exit(5)

def store(fd):
    os.write(fd, b'{"port": 4242}\\n')
    os.read(fd, 1)

def broken_store(fd):
    raise OSError("no port for you")
'''

DRIVER = """
import asyncio, os, sys
from pathlib import Path
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.node.agent import agent as module, store, workers
from launcher.node.agent.environment import base_environment
from launcher.node.agent.leader_search import LeaderSearch
from launcher.node.agent.membership import Doors
from launcher.node.forkserver.client import ForkServer

paths = RunPaths(Path(sys.argv[1]))
spec = RunSpec.read(paths.spec)
node, port = int(sys.argv[2]), sys.argv[3]
if not os.environ.pop("REAL", ""):
    module.PRELOAD = ["json", "launcher.run.messages"]
    workers.WORKER_MAIN, store.STORE_MAIN = "agent_work:main", "agent_work:store"
for line in os.environ.pop("TWEAK", "").split(";"):
    exec(line.strip())

async def work():
    environ = base_environment(os.environ, spec, {})
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [spec.code_dir, environ.get("PYTHONPATH")]))
    doors = Doors(spec, paths.secret.read_text(), "test.0", ["first", "host1", "host2"], node)
    server = ForkServer(preload=module.PRELOAD, environ=environ)
    agent = module.Agent(spec, paths, node=node, host=f"host{node}", search=LeaderSearch(spec, paths, doors), server=server)
    return await agent.run()

loop = asyncio.new_event_loop()
code = loop.run_until_complete(work())
os._exit(code)
"""


class Leader:
    """Keeps what agents say, and says what a test tells it to."""

    def __init__(self) -> None:
        self.links: dict[int, Any] = {}
        self.said: list[dict[str, Any]] = []
        self.ends: list[int] = []
        self.greets = True
        self.kept = False
        self.patience_s = 60.0
        self.changed = asyncio.Event()
        self._of: dict[int, int] = {}

    def opened(self, link: Any) -> None:
        """See `Hub`."""

    def received(self, link: Any, message: dict[str, Any]) -> None:
        """See `Hub`."""
        if message["type"] == "hello":
            self.links[message["node"]] = link
            self._of[id(link)] = message["node"]
            if self.greets:
                link.send(
                    Welcome(
                        attempt=0,
                        t=time.time(),
                        kept=self.kept,
                        patience_s=self.patience_s,
                    )
                )
        self.said.append({"node": self._of.get(id(link)), "at": time.monotonic(), **message})
        self.changed.set()

    def closed(self, link: Any, why: str) -> None:
        """See `Hub`."""
        self.ends.append(self._of.get(id(link), -1))
        self.changed.set()

    def all(self, type_: str, **values: Any) -> list[dict[str, Any]]:
        """Everything of ``type_`` that was said, with these values."""
        return [m for m in self.said if m["type"] == type_ and all(m.get(k) == v for k, v in values.items())]

    @property
    def phases(self) -> int:
        """How many phases of single ranks were told."""
        return sum(len(m["ranks"]) for m in self.said if m["type"] == "ranks" and m["message"]["type"] == "phase")

    def tell(self, type_: str, node: int = 0, **values: Any) -> None:
        """Say something to an agent."""
        self.links[node].send(ToAgent.kinds[type_].from_wire(values, []))

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until what agents said fulfils ``condition``."""

        async def wait() -> None:
            while not condition():
                self.changed.clear()
                try:
                    await asyncio.wait_for(self.changed.wait(), 0.05)
                except asyncio.TimeoutError:
                    pass

        await asyncio.wait_for(wait(), WAIT_S)

    async def heard(self, type_: str, count: int = 1, **values: Any) -> list[dict[str, Any]]:
        """Wait until ``type_`` was said ``count`` times with these values."""
        await self.until(lambda: len(self.all(type_, **values)) >= count)
        return self.all(type_, **values)

    def round(self, number: int, size: int, do: str, node: int = 0, **values: Any) -> None:
        """Order a round of ``size`` workers on one node, all of which do ``do``."""
        order = {
            "round": number,
            "world_size": size,
            "master_addr": "127.0.0.1",
            "master_port": 4242,
            "resume": None,
            "group_rank": 0,
            "workers": [{"rank": r, "local_rank": r} for r in range(size)],
            "mlflow_run_id": do,
        }
        self.tell("round", node, **{**order, **values})


class World:
    """One run directory, one fake leader, and the agents of a test."""

    key = KEY

    def __init__(self, root: Path) -> None:
        self.paths = RunPaths(root)
        self.leader = Leader()
        self.agents: list[subprocess.Popen[bytes]] = []
        self.port = 0
        self.stop: Callable[[], None] = lambda: None
        (root / "code").mkdir(parents=True)
        (root / "code" / "agent_work.py").write_text(WORK)
        self.paths.secret.write_text(SECRET)

    def spec(self, **values: Any) -> RunSpec:
        """Write the run's spec and return it."""
        usual: dict[str, Any] = {
            "id": "r1", "name": "r", "run_dir": str(self.paths.root), "work": Work(kind="function", target="x:y"),
            "batch": "local", "nodes": 1, "tasks_per_node": 4, "timeout_min": 5, "backend": "gloo",
            "port_range": [self.port, self.port], "code_dir": str(self.paths.code), "init_timeout_min": 2.0,
        }  # fmt: skip
        spec = RunSpec(**{**usual, **values})
        spec.write(self.paths.spec)
        return spec

    async def listen(self) -> None:
        """Begin to lead, on a port that nobody has."""
        for _ in range(50):
            with socket.create_server(("127.0.0.1", 0)) as probe:
                self.port = probe.getsockname()[1]
            try:
                self.stop = await connection.server(KEY, [self.port], peers=1, local=True)(self.leader)
                return
            except ProtocolError:
                continue

    def agent(self, node: int = 0, *, tweak: str = "", **environ: str) -> subprocess.Popen[bytes]:
        """Start the agent of ``node``; ``tweak`` are statements run in it first. ``REAL``: its workers train with torch."""
        log = (self.paths.root / f"agent-{node}.log").open("ab")
        with log:
            agent = subprocess.Popen(
                [sys.executable, "-c", DRIVER, str(self.paths.root), str(node), str(self.port)],
                env={**os.environ, "TWEAK": tweak, "MARK": str(self.paths.root), **environ},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self.agents.append(agent)
        return agent

    def left(self) -> list[int]:
        """Every process that came out of this world's agents, themselves included; zombies count."""
        mark = f"MARK={self.paths.root}".encode()
        return [pid for pid in proctable.table() if proctable.marked(pid, mark)]

    async def gone(self, agent: subprocess.Popen[bytes]) -> int:
        """Wait for an agent's end; its exit code."""
        await self.leader.until(lambda: agent.poll() is not None)
        return int(agent.returncode)

    def log(self, rank: int, round_: int = 0) -> str:
        """A worker's log."""
        return self.paths.rank_log(0, round_, rank).read_text()

    def agent_log(self, node: int = 0) -> str:
        """An agent's own log."""
        return (self.paths.root / f"agent-{node}.log").read_text()

    def fork_server(self, agent: subprocess.Popen[bytes]) -> int:
        """The pid of an agent's fork server: its only child."""
        return next(p.pid for p in psutil.Process(agent.pid).children())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[[Callable[[World], Awaitable[None]]], None]]:
    """Run a test's coroutine in a `World`; afterwards no process of it may be alive."""
    made: list[World] = []

    def run(body: Callable[[World], Awaitable[None]]) -> None:
        async def main() -> None:
            w = World(tmp_path / "run-1")
            made.append(w)
            await w.listen()
            w.spec()
            try:
                await body(w)
            except BaseException:
                for node in range(len(w.agents)):
                    print(f"--- agent {node}\n{w.agent_log(node)}")
                raise
            finally:
                for agent in w.agents:
                    if agent.poll() is None:
                        agent.send_signal(signal.SIGCONT)
                        agent.kill()
                    agent.wait()
                w.stop()
            await w.leader.until(lambda: w.left() == [])

        asyncio.run(main())

    yield run
    for w in made:
        for pid in w.left():
            os.kill(pid, signal.SIGKILL)
