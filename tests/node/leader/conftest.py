"""A cluster in one event loop with virtual time: the real leader, scripted agents and workers, no sleeping."""

from __future__ import annotations

import asyncio
import os
import random
import selectors
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import SiteError
from launcher.node.agent.answers import ANSWERS, Answers
from launcher.node.agent.progress import ProgressWindow
from launcher.node.allocation.allocation import HandedBack, NotAnsweredError, SignalMeaning
from launcher.node.leader.board import Timing
from launcher.node.leader.leader import Ending, Leader
from launcher.node.wire.messages import Alive, FromAgent, Hub, RankUse, StartRound, ToAgent
from launcher.run import clock
from launcher.run.error_words import is_lost_collective, kind_of_words
from launcher.run.files import read_lines
from launcher.run.manifest import HASH_NAME, new_hash
from launcher.run.messages import FromWorker, WorkerProgress
from launcher.run.paths import RunPaths
from launcher.run.spec import CheckpointSpec, RestartSpec, RunSpec, SiteSpec, Work
from launcher.run.state import read_outcome

sys.path.insert(0, str(Path(__file__).parent))


def hash_bytes(data: bytes) -> str:
    """The digest that the manifest of a checkpoint has of a file with these bytes."""
    made = new_hash()
    made.update(data)
    return str(made.hexdigest())


class _Selector(selectors.DefaultSelector):
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("everybody waits for ever")
        self.loop.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time jumps to the next timer whenever nothing is ready."""

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self.now = 1000.0
        super().__init__(selector)

    def time(self) -> float:
        """Virtual seconds."""
        return self.now


def run_virtual(main: Coroutine[Any, Any, Any]) -> Any:
    """Run ``main`` to its end in virtual time, which events tell, too; it stands still until the test's next run goes on."""
    loop = VirtualLoop()
    began_s = clock.up_s() - loop.now
    clock.up_s = lambda: began_s + loop.now
    faults: list[Any] = []
    loop.set_exception_handler(lambda _, context: faults.append(context.get("exception") or context["message"]))
    try:
        return loop.run_until_complete(asyncio.wait_for(main, 100_000))
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        assert faults == []


async def at_once(work: Callable[[], Any]) -> Any:
    """Blocking work without a thread: virtual time would run away meanwhile."""
    await asyncio.sleep(0.001)
    return work()


def make_spec(root: Path, **changes: Any) -> RunSpec:
    """A small spec; ``checkpoint``, ``restart`` and ``site`` may be dicts."""
    values: dict[str, Any] = {
        "id": root.name,
        "name": "sim",
        "run_dir": str(root),
        "work": Work(kind="task", target="m:C"),
        "batch": "slurm",
        "nodes": 2,
        "tasks_per_node": 2,
        "timeout_min": 60,
        "backend": "gloo",
        "port_range": [20000, 20031],
        "preflight": False,
        "init_timeout_min": 1.0,
    }
    nested = {"checkpoint": CheckpointSpec, "restart": RestartSpec, "site": SiteSpec}
    for key, value in changes.items():
        values[key] = nested[key](**value) if key in nested and isinstance(value, dict) else value
    return RunSpec(**values)


class FakeAllocation:
    """SLURM as the leader sees it; notes what it is asked."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.job_id: str | None = "77"
        self.restart_count = 0
        self.requeues = True
        self.means = SignalMeaning("preempted")
        self.is_cancelled = False
        self.is_step_cancelled = False
        self.how = "requeue"
        self.given_up: tuple[str, ...] = ()
        self.refuses = ""
        self.silent_until = 0.0
        self.ended: dict[str, str] = {}
        self.early = False
        self.left_s: float | None = None
        self.leader_ended = ""
        self.gone_jobs: set[str] = set()
        self.said: list[Any] = []

    def meaning(self, signal: str) -> SignalMeaning:
        return self.means

    def answers(self) -> bool:
        return True

    def taken(self) -> bool:
        return False

    def cancelled(self) -> bool:
        return self.is_cancelled

    def ended_tasks(self) -> dict[str, str]:
        return self.ended

    def step_cancelled(self) -> bool:
        return self.is_step_cancelled

    def leader_end(self) -> str:
        return self.leader_ended

    def queue_early(self) -> str:
        self.said.append(("queue_early",))
        if self.refuses:
            raise SiteError(self.refuses)
        return "79"

    def withdraw_early(self) -> None:
        if self.world.spec.restart.queue_early:
            self.said.append(("withdraw_early",))

    def hand_back(
        self,
        *,
        exclude: tuple[str, ...],
        delay_s: float,
        early: bool = False,
        nodes: tuple[int, int] | None = None,
    ) -> HandedBack:
        self.early, self.nodes = early, nodes
        if self.silent_until > asyncio.get_running_loop().time():
            raise NotAnsweredError("no answer")
        if self.refuses:
            raise SiteError(self.refuses)
        self.said.append(("hand_back", exclude, delay_s))
        return HandedBack(self.how, "77" if self.how == "requeue" else "78", self.given_up)

    def let_go(self, hosts: tuple[str, ...]) -> tuple[str, ...]:
        self.said.append(("let_go", hosts))
        return hosts

    def ask_for_node(self, words: tuple[str, ...], *, exclude: tuple[str, ...]) -> str:
        self.said.append(("ask_for_node", words, exclude))
        if self.refuses:
            raise SiteError(self.refuses)
        return f"{90 + sum(said[0] == 'ask_for_node' for said in self.said)}"

    def time_left_s(self, job_id: str, signal: str) -> float | None:
        return self.left_s

    def is_coming(self, job_id: str) -> bool:
        return job_id not in self.gone_jobs

    def withdraw_nodes(self, *, pending: bool = False) -> None:
        if self.world.spec.replace:
            self.said.append(("withdraw_nodes", pending))

    def pull_forward(self) -> None:
        self.said.append(("pull_forward", [n.index for n in self.world.nodes if n.connected]))

    def forbid_requeue(self) -> None:
        self.said.append(("forbid_requeue",))

    def run_completed(self) -> None:
        """Nothing to say: what SLURM would do after the end is tests/faults/test_fault_policies.py's."""

    def remark(self, text: str) -> None:
        self.said.append(("remark", text))

    def end_step(self) -> None:
        self.said.append(("end_step",))


class FakeLink:
    """The leader's end of a simulated connection: ordered, with random delays both ways."""

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self._arrives = {"down": 0.0, "up": 0.0}
        self.open = True

    def later(self, way: str, call: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._arrives[way] = max(self._arrives[way] + 1e-6, loop.time() + self.node.world.delay())
        loop.call_at(self._arrives[way], call)

    def send(self, message: ToAgent) -> None:
        if not self.node.cut:
            values = message.to_wire()
            self.later("down", lambda: self.node.hear(values))

    def close(self) -> None:
        self.open = False

    def up(self, message: dict[str, Any]) -> None:
        if self.open and not self.node.cut:
            self.later("up", lambda: self.node.world.hub.received(self, message))

    def hang_up(self) -> None:
        if self.open:
            self.open = False
            self.later("up", lambda: self.node.world.hub.closed(self, "closed"))


class FakeWorker:
    """The worker's half of the invariant, one asyncio task per rank."""

    def __init__(self, node: FakeNode, order: dict[str, Any], rank: int) -> None:
        self.node, self.rank, self.round = node, rank, order["round"]
        self.world = node.world
        self.group = self.world.groups.setdefault(self.round, Group(order["world_size"]))
        self.first = order["resume"]["step"] if order.get("resume") else 0
        self.entered = self.begun = self.first
        self.hold = False
        self.stop: dict[str, Any] | None = None
        self.known = asyncio.Event()
        self.saves: set[int] = set()
        self.state = "S"
        self.cpu_percent = 1.0
        self.attached = False
        self.done = False
        self.task = asyncio.get_running_loop().create_task(self.main())

    def say(self, type_: str, **values: Any) -> None:
        self.attached = self.attached or type_ == "attached"
        self.node.said(self, {"type": type_, **values})

    def hear(self, m: dict[str, Any]) -> None:
        if m["type"] == "pause":
            self.hold = True
            self.say("entered", step=self.entered)
        elif m["type"] == "where":
            self.say("at", step=self.entered)
        elif m["type"] == "release":
            self.hold = False
            self.known.set()
        elif m["type"] == "stop":
            assert self.begun <= m["step"], "a worker is past the agreed step"
            self.stop = m
            self.known.set()
        elif m["type"] == "save_at":
            ok = self.entered <= m["step"] and not self.done
            if ok:
                self.saves.add(m["step"])
            self.say("save_ack", id=m["id"], ok=ok)
        elif m["type"] == "save_lost":
            self.saves.discard(m["step"])

    async def main(self) -> None:
        world, rng = self.world, self.world.rng
        await asyncio.sleep(world.start_s)
        self.say("hello", pid=1000 + self.rank)
        self.say("phase", name="init")
        await self.group.meet(("ready", 0), self)
        self.say("ready")
        self.say("phase", name="train")
        for step in range(self.first + 1, world.total_steps + 1):
            self.entered = step
            while self.hold and self.stop is None:
                self.known.clear()
                await self.known.wait()
            if self.stop is not None and step > self.stop["step"]:
                return await self.leave(step - 1)
            self.begun = step
            await asyncio.sleep(rng.uniform(0.2, 1.8) * world.step_s)
            world.hooks_at(self, step)
            await self.group.meet(("step", step), self)
            self.say("progress", step=step, epoch=0, total_steps=world.total_steps, step_time_s=world.step_s)
            if world.interval and step % world.interval == 0:
                self.saves.add(step)
            if step in self.saves:
                self.saves.discard(step)
                await self.save(step)
        if self.world.saves_enabled:
            await self.save(world.total_steps)
        self.done = True
        self.say("finished", step=world.total_steps, saved=True)
        await self.exit()

    async def leave(self, step: int) -> None:
        assert self.stop is not None
        if self.stop["save"]:
            await self.save(step)
        self.done = True
        self.say("stopped", step=step, saved=self.stop["save"])
        await self.exit()

    async def exit(self) -> None:
        await asyncio.sleep(self.world.exit_s)
        self.node.exited(self, 0, None)

    async def save(self, step: int) -> None:
        tmp = self.world.paths.checkpoint_tmp(self.world.attempt, self.round, step)
        self.say("save_begun", step=step)
        await asyncio.sleep(self.world.save_s)
        if self.world.disk_full:
            self.say("save_failed", step=step, error="No space left on device", errno=28)
            return
        if not self.world.paths.checkpoints.is_dir():  # workers never make the run's folder
            self.say("save_failed", step=step, error="No such file or directory", errno=2)
            return
        data = f"{step} {self.rank}".encode()
        os.makedirs(tmp, exist_ok=True)
        name = f"rank-{self.rank:05d}"
        Path(tmp, name).write_bytes(data)
        files = [{"name": name, "size": len(data), "hash": hash_bytes(data)}]
        self.say(
            "shard",
            step=step,
            files=files,
            seconds=self.world.save_s,
            blocked_s=self.world.blocked_s,
            hash_name=HASH_NAME,
        )

    def die(self, signal: int | None = 9, exit_code: int | None = None) -> None:
        """End without a word; the others' collectives break."""
        self.task.cancel()
        self.node.exited(self, exit_code, signal)
        self.group.broken(self)

    def fail(self, exception: str, message: str, step: int | None = None) -> None:
        """End with an exception, told as a real worker tells one that a library raised."""
        self.task.cancel()
        self.say(
            "failed",
            exception=exception,
            message=message,
            frames=[{"file": "train.py", "line": 7, "function": "loss", "code": "x"}],
            step=step or self.entered,
            kind=kind_of_words(exception, message) or "exception",
            victim=is_lost_collective(exception, message),
        )
        self.node.exited(self, 1, None)
        if exception != "RuntimeError":
            self.group.broken(self)


class Group:
    """Collectives of one round: everybody meets, or the others of a dead rank see a reset connection."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.members: list[FakeWorker] = []
        self._here: dict[Any, list[asyncio.Event]] = {}

    async def meet(self, key: Any, worker: FakeWorker) -> None:
        if worker not in self.members:
            self.members.append(worker)
        event = asyncio.Event()
        waiting = self._here.setdefault(key, [])
        waiting.append(event)
        if len(waiting) == self.size:
            for one in waiting:
                one.set()
        await event.wait()

    def broken(self, dead: FakeWorker) -> None:
        for other in self.members:
            if other is not dead and not other.task.done():
                other.fail("RuntimeError", "Connection closed by peer [10.0.0.1]:4242")


class FakeNode:
    """A scripted agent."""

    def __init__(self, world: World, index: int, name: str) -> None:
        self.world, self.index, self.name = world, index, name
        self.link: FakeLink | None = None
        self.cut = False
        self.workers: list[FakeWorker] = []
        self.round = -1
        self.heard: list[dict[str, Any]] = []
        self.check_ok = True
        self.window: ProgressWindow | None = None
        self.answers: Answers
        self._beat: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self.link is not None

    def join(self, *, again: bool = False) -> None:
        """``again``: it was here before, under this attempt."""
        self.link = FakeLink(self)
        attempt = self.world.attempt if again else None
        self.up("hello", node=self.index, host=self.name, pid=1, attempt=attempt, facts={"cpus": 2})
        self._beat = asyncio.get_running_loop().create_task(self.beat())

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            ranks = [
                {
                    "rank": w.rank,
                    "cpu_percent": w.cpu_percent,
                    "gpu_percent": self.world.gpu_percent,
                    "rss_bytes": 1,
                    "state": w.state,
                }
                for w in self.workers
                if not w.done
            ]
            if self.window is None:
                self.up("alive", ranks=ranks)
            else:
                uses = [RankUse(**use) for use in ranks]
                self.tell(Alive(**self.window.heartbeat(uses, asyncio.get_running_loop().time())))

    def up(self, type_: str, **values: Any) -> None:
        if self.link is not None:
            self.link.up({"type": type_, **values})

    def tell(self, message: FromAgent) -> None:
        if self.link is not None:
            self.link.up(message.to_wire())

    def said(self, worker: FakeWorker, message: dict[str, Any]) -> None:
        """Pass on what a worker says, as agents do: answers of all its ranks together, progress with the heartbeat where that is on."""
        said = FromWorker.read(message, [])
        if isinstance(said, ANSWERS):
            return self.answers.take(worker.rank, said)
        if self.window is not None and isinstance(said, WorkerProgress):
            if self.window.holds(worker.rank, said, asyncio.get_running_loop().time()):
                return None
            self.up("worker", round=worker.round, rank=worker.rank, message=message)
            return None
        self.answers.flush(worker.rank)
        if self.window is not None and (held := self.window.take(worker.rank)) is not None:
            self.up("worker", round=worker.round, rank=worker.rank, message=held.to_wire())
        self.up("worker", round=worker.round, rank=worker.rank, message=message)
        self.answers.look()
        return None

    def exited(
        self,
        worker: FakeWorker,
        exit_code: int | None,
        signal: int | None,
        last_lines: list[str] | None = None,
        by_us: bool | None = None,
    ) -> None:
        self.answers.flush(worker.rank)
        self.up(
            "worker_exit",
            round=worker.round,
            rank=worker.rank,
            exit_code=exit_code,
            signal=signal,
            last_lines=last_lines or [],
            oom=False,
            by_us=by_us,
        )
        if worker in self.workers:
            self.workers.remove(worker)
        self.answers.look()

    def hear(self, m: dict[str, Any]) -> None:
        if self.link is None or self.cut:
            return
        self.heard.append(m)
        handler = getattr(self, f"on_{m['type']}", None)
        if handler is not None:
            handler(m)

    def on_store(self, m: dict[str, Any]) -> None:
        self.up("store_ready", round=m["round"], port=5000 + m["round"])

    def on_preflight(self, m: dict[str, Any]) -> None:
        self.up(
            "preflight",
            ok=self.check_ok,
            seconds=0.1,
            checks=[{"name": "gpus", "ok": self.check_ok, "detail": "3 of 4"}],
        )

    def on_round(self, m: dict[str, Any]) -> None:
        self.round = m["round"]
        self.window = None
        if self.world.detail_every_s is not None:
            order = ToAgent.read({**m, "detail_every_s": self.world.detail_every_s}, [])
            assert isinstance(order, StartRound)
            self.window = ProgressWindow(order)
        self.answers = Answers(self.round, lambda: [w.rank for w in self.workers if not w.done], self.tell)
        self.workers = [self.world.worker(self, m, w["rank"]) for w in m["workers"]]
        for w in self.workers:
            self.up("worker_up", round=m["round"], rank=w.rank, pid=1000 + w.rank)

    def on_end(self, m: dict[str, Any]) -> None:
        for w in list(self.workers):
            w.task.cancel()
            self.exited(w, None, 9)
        self.up("cleared", round=m["round"])

    def on_term(self, m: dict[str, Any]) -> None:
        for w in [w for w in self.workers if not w.attached]:
            w.task.cancel()
            self.exited(w, self.world.term_code, None if self.world.term_code is not None else 15)

    def on_dump(self, m: dict[str, Any]) -> None:
        self.up("stacks", round=m["round"])

    def on_to_workers(self, m: dict[str, Any]) -> None:
        for w in list(self.workers):
            if m["round"] == w.round and (m["ranks"] is None or w.rank in m["ranks"]) and w.state != "T":
                # the socket pair and the control thread take their time too
                asyncio.get_running_loop().call_later(self.world.delay() / 4, w.hear, m["message"])

    def on_shutdown(self, m: dict[str, Any]) -> None:
        self.up("leaving")
        self.die()

    def die(self, silently: bool = False) -> None:
        """The host's processes end; ``silently``: its network goes first."""
        if silently:
            self.cut = True
        for w in list(self.workers):
            w.task.cancel()
            w.group.broken(w)
        self.workers = []
        if self._beat is not None:
            self._beat.cancel()
        if self.link is not None and not self.cut:
            self.link.hang_up()
        self.link = None


class FakeKeeper:
    """A scripted keeper: an agent that it starts again has joined after ``start_s``."""

    def __init__(self, world: World, *, start_s: float = 1.0, refuses: str = "", slow_s: float = 0.0) -> None:
        self.world, self.start_s, self.refuses, self.slow_s = world, start_s, refuses, slow_s
        self.step_cancelled = False
        self.cut = False
        self.beats = True
        self._beat: asyncio.Task[None] | None = None
        self.heard: list[dict[str, Any]] = []

    def join(self) -> None:
        self.link = FakeLink(self)  # type: ignore[arg-type]
        self.link.up({"type": "keeper", "pid": 1, "mark": None, "start_s": self.slow_s})
        self._beat = asyncio.get_running_loop().create_task(self.beat())

    async def beat(self) -> None:
        while self.beats:
            await asyncio.sleep(1.0)
            self.link.up({"type": "alive", "t": 0, "ranks": []})

    def stop(self) -> None:
        """The keeper ends with its leader here; it joins the next one."""
        if self._beat is not None:
            self._beat.cancel()

    def hear(self, m: dict[str, Any]) -> None:
        self.heard.append(m)
        if m["type"] == "revive" and self.refuses:
            said = {"node": m["node"], "order": m["order"], "why": self.refuses, "step_cancelled": self.step_cancelled}
            self.link.up({"type": "not_revived", **said})
        elif m["type"] == "revive":
            asyncio.get_running_loop().call_later(self.start_s, self.world.nodes[m["node"]].join)


class World:
    """One run in a simulated cluster; `attempt_once` is one life of the allocation."""

    def __init__(self, root: Path, *, seed: int = 0, **changes: Any) -> None:
        self.paths = RunPaths(root)
        self.spec = make_spec(root, **changes)
        self.rng = random.Random(seed)
        self.step_s, self.save_s, self.total_steps, self.interval = 0.05, 0.02, 40, self.spec.checkpoint.interval_steps
        self.max_delay_s, self.start_s, self.exit_s = 0.02, 0.0, 0.0
        self.blocked_s = 0.01
        self.detail_every_s: float | None = None
        """Where set, progress comes with the heartbeat, and of each rank so often; else each report by itself."""
        self.gpu_percent: float | None = None
        self.disk_full = False
        self.term_code: int | None = 0
        self.groups: dict[int, Group] = {}
        self.nodes: list[FakeNode] = []
        self.hooks: dict[int, list[Callable[[FakeWorker], None]]] = {}
        self.timing = Timing()
        self.allocation = FakeAllocation(self)
        self.attempt = -1
        self.leader: Leader = None  # type: ignore[assignment]
        self.worker_class = FakeWorker
        self.names = [f"n{i}" for i in range(self.spec.nodes + self.spec.spare_nodes)]
        self.keeper: FakeKeeper | None = None

    def keep(self, **values: Any) -> None:
        """Have a `FakeKeeper` beside the leader."""
        self.keeper = FakeKeeper(self, **values)

    @property
    def saves_enabled(self) -> bool:
        return self.spec.checkpoint.enabled

    def delay(self) -> float:
        return self.rng.uniform(0.0, self.max_delay_s)

    def worker(self, node: FakeNode, order: dict[str, Any], rank: int) -> FakeWorker:
        return self.worker_class(node, order, rank)

    def hooks_at(self, worker: FakeWorker, step: int) -> None:
        for hook in self.hooks.get(step, []):
            hook(worker)

    def find(self, rank: int) -> FakeWorker:
        return next(w for n in self.nodes for w in n.workers if w.rank == rank)

    async def until(self, true: Callable[[], bool], limit_s: float = 5000) -> None:
        """Wait in virtual time until something holds."""
        deadline = asyncio.get_running_loop().time() + limit_s
        while not true():
            assert asyncio.get_running_loop().time() < deadline, "it never happened"
            await asyncio.sleep(0.01)

    def another(self, index: int, name: str) -> FakeNode:
        """One more node, which has not joined yet."""
        self.nodes.append(FakeNode(self, index, name))
        return self.nodes[-1]

    def signal(self, name: str = "TERM") -> None:
        for node in self.nodes:
            node.up("signal", name=name)

    async def attempt_once(
        self,
        script: Callable[[], Awaitable[None]] | None = None,
        *,
        absent: tuple[int, ...] = (),
        revived: bool = False,
        lost: tuple[str, ...] = (),
    ) -> Ending:
        """Run one attempt to its end; ``script`` runs beside it. ``revived``: the leader takes a dead one's place in the same attempt.

        ``lost``: hosts that SLURM has removed; the first of the others leads.
        """
        self.attempt += not revived
        self.groups.clear()
        self.nodes = [FakeNode(self, i, name) for i, name in enumerate(self.names)]
        self.leader = Leader(
            self.spec,
            self.paths,
            host=next(name for name in self.names if name not in lost),
            node_names=self.names,
            allocation=self.allocation,
            blocking=at_once,
            timing=self.timing,
            revived=revived,
            lost=lost,
        )

        async def serve(hub: Hub) -> Callable[[], None]:
            self.hub = hub
            for node in self.nodes:
                if node.index not in absent and node.name not in lost:
                    node.join()
            if self.keeper is not None:
                self.keeper.join()
            return lambda: None

        beside = asyncio.get_running_loop().create_task(script()) if script else None  # type: ignore[arg-type]
        try:
            return await self.leader.run(serve)
        finally:
            if self.keeper is not None:
                self.keeper.stop()
            for node in self.nodes:
                node.die()
            if beside is not None:
                if beside.done() and not beside.cancelled() and (error := beside.exception()):
                    raise error
                beside.cancel()

    # --- what came of it ---

    def events(self, *types: str) -> list[dict[str, Any]]:
        return [e for e in read_lines(self.paths.events) if not types or e["type"] in types]

    @property
    def outcome(self) -> dict[str, Any] | None:
        return read_outcome(self.paths.outcome)

    def leftovers(self) -> list[str]:
        return sorted(p.name for p in self.paths.checkpoints.iterdir() if not p.name.startswith("step-"))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    """Make a world: ``world(nodes=2, ...)``. No fsync: hundreds of runs would wait for the disk alone."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)

    def make(**changes: Any) -> World:
        root = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        root.mkdir()
        return World(root, **changes)

    return make


@pytest.fixture
def virtual() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """Run a coroutine in virtual time, which is this test's own."""
    up_s = clock.up_s
    yield run_virtual
    clock.up_s = up_s
