"""How much work many nodes are for one leader, in simulation: the real leader, transport and files; agents that follow a script.

    python benchmarks/scale.py [--nodes 250] [--ranks 8] [--step 1] [--seconds 30] [--json] [--no-codes]

The agents run in two other processes of this machine and speak every message of a training round: they join, answer orders, report
steps, beat each second, and stop at the agreed step. ``--no-codes`` leaves out the codes that prove each block of lines, for comparison alone.
``leader_cpu`` is the share of a core that the leader's process takes while all ranks train.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from launcher.node.agent.answers import shards_written
from launcher.node.allocation.allocation import Allocation
from launcher.node.leader.leader import Leader
from launcher.node.wire import connect, connection, proofs
from launcher.node.wire import messages as wire
from launcher.run import messages
from launcher.run.manifest import HASH_NAME, new_hash
from launcher.run.message_lines import MessageReader
from launcher.run.paths import RunPaths
from launcher.run.spec import CheckpointSpec, RunSpec, Work

PROCESSES = 2
FILES = 65536
KEY = proofs.LifeKey("5a" * 32, "scale.0", "n0")
STEPS = 10**9


def without_codes() -> None:
    """Have blocks carry no code that is computed."""
    proofs.BlockCodes._code = lambda self, lines: b"0" * 32  # type: ignore[method-assign]


# --- agents ---


class ScriptedAgent:
    """One node: what an agent and its workers send, without processes."""

    def __init__(self, node: int, ranks: int, step_s: float, paths: RunPaths) -> None:
        self.node, self.count, self.step_s, self.paths = node, ranks, step_s, paths
        self.peer: connection.Peer
        self.training: asyncio.Task[None] | None = None
        self.ranks: list[int] = []
        self.round = 0
        self.stop_at, self.saves = STEPS, False
        self.step = self.told = 0
        self.detail_at, self.detail_every_s, self.phase = 0.0, 1.0, 0.0
        self.held = asyncio.Event()

    def say(self, rank: int, said: messages.FromWorker) -> None:
        """Send what a worker says."""
        self.peer.send(wire.WorkerSaid(round=self.round, rank=rank, message=said.to_wire()))

    def say_together(self, ranks: list[int], said: messages.FromWorker) -> None:
        """Send what all of these ranks have answered."""
        self.peer.send(wire.RanksSaid(round=self.round, ranks=ranks, message=said.to_wire()))

    async def run(self, port: int, signalled: asyncio.Event) -> None:
        """Join, obey, leave. A leader that is dialled by a thousand at once hangs up on some before they have proved anything."""
        while not await self.joined(port, signalled):
            pass
        self.peer.send(wire.Leaving())
        await self.peer.hang_up()

    async def joined(self, port: int, signalled: asyncio.Event) -> bool:
        """Join and obey; return whether the leader has sent this agent away."""
        self.peer = await connect.find_leader("127.0.0.1", [port], KEY, timeout_s=600)
        lists: dict[str, Any] = {"gpu_names": [], "gpu_mem_bytes": [], "gpu_numa_nodes": [], "warnings": []}
        shown = {**dict.fromkeys(wire.NodeFacts._frozen_fields), **lists, "sees_run_dir": True, "address": "127.0.0.1"}
        facts = wire.NodeFacts(**shown)
        self.peer.send(wire.AgentHello(node=self.node, host=f"n{self.node}", pid=1, attempt=None, facts=facts))
        beside = [asyncio.ensure_future(self.beat()), asyncio.ensure_future(self.tell_signal(signalled))]
        reader = MessageReader(wire.ToAgent, print)
        try:
            async for values in self.peer.messages():
                order = reader.read(values)
                if isinstance(order, wire.Shutdown):
                    return True
                self.obey(order)
            return False
        finally:
            for task in beside:
                task.cancel()

    async def tell_signal(self, signalled: asyncio.Event) -> None:
        """SLURM sends its signals to every node."""
        await signalled.wait()
        self.peer.send(wire.SignalHeard(name="TERM"))

    async def beat(self) -> None:
        """As `launcher.node.agent.agent` does: each rank where that is due, all together in between."""
        while True:
            news, self.told = self.step > self.told, max(self.told, self.step)
            use: list[wire.RankUse] = []
            more: dict[str, Any] = (
                {"round": self.round, "quiet_s": 0.0, "total_steps": STEPS, "epoch": 0, "epochs": 1} if news else {}
            )
            if time.monotonic() >= self.detail_at:
                self.detail_at = time.monotonic() + self.detail_every_s * (self.phase if self.detail_at == 0.0 else 1.0)
                step = {"step": self.step, "wait_s": 0.01, "data_s": 0.0}
                times = dict.fromkeys(("step_time_s", "usual_s", "longest_s"), self.step_s)
                uses = {"cpu_percent": 99.0, "rss_bytes": 2**32, "gpu_percent": 95.0, "state": "R"}
                use = [wire.RankUse(rank=r, **uses, **(step | times if news else {})) for r in self.ranks]
            elif news:
                more |= {"slowest": self.step, "fastest": self.step, "usual_s": self.step_s, "longest_s": self.step_s}
            self.peer.send(wire.Alive(ranks=use, **more))
            await asyncio.sleep(wire.HEARTBEAT_S)

    def obey(self, order: wire.ToAgent | None) -> None:
        """Answer an order as an agent and its workers would."""
        match order:
            case wire.StartStore():
                self.peer.send(wire.StoreReady(round=order.round, port=1))
            case wire.StartRound():
                self.round, self.ranks = order.round, [place.rank for place in order.workers]
                self.step = self.told = 0
                self.detail_every_s, self.phase = order.detail_every_s, order.group_rank * 0.618 % 1.0
                self.detail_at = 0.0
                self.training = asyncio.ensure_future(self.train())
            case wire.ToWorkers():
                self.hear(messages.ToWorker.read(order.message, []), order.ranks)
            case wire.EndRound():
                if self.training is not None:
                    self.training.cancel()
                for rank in self.ranks:
                    self.exited(rank, signal=9)
                self.peer.send(wire.Cleared(round=order.round))

    def hear(self, said: messages.ToWorker | None, to: list[int] | None) -> None:
        """Answer a message to the workers."""
        mine = self.ranks if to is None else [rank for rank in self.ranks if rank in set(to)]
        match said:
            case messages.Pause():
                self.held.set()
                self.say_together(mine, messages.WorkerEntered(step=self.step + 1))
            case messages.StopAt():
                self.stop_at, self.saves = said.step, said.save
                self.held.clear()

    async def train(self) -> None:
        """Start, then do a step after the other."""
        for rank in self.ranks:
            self.peer.send(wire.WorkerUp(round=self.round, rank=rank, pid=1))
            for said in (messages.WorkerHello(pid=1), messages.WorkerPhase(name="init"), messages.WorkerReady()):
                self.say(rank, said)
            self.say(rank, messages.WorkerPhase(name="train"))
        due = time.monotonic()
        while self.step < self.stop_at:
            due += self.step_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            while self.held.is_set():
                await asyncio.sleep(0.01)
            if self.step >= self.stop_at:
                break
            self.step += 1
            if self.step == 1:  # later ones come with the heartbeat
                self.told = 1
                for rank in self.ranks:
                    self.say(rank, messages.WorkerProgress(step=1, total_steps=STEPS))
        if self.saves:
            self.say_together(self.ranks, messages.WorkerSaveBegun(step=self.stop_at))
            # In a thread: a disk that is slow for seconds silences no node.
            shards = await asyncio.to_thread(lambda: {rank: self.save(rank) for rank in self.ranks})
            self.peer.send(shards_written(self.round, shards))
        self.say_together(self.ranks, messages.WorkerStopped(step=self.stop_at, saved=self.saves))
        for rank in self.ranks:
            self.exited(rank, exit_code=0)

    def save(self, rank: int) -> messages.WorkerShard:
        """Write a rank's part of the checkpoint, a small file; return what tells of it."""
        folder, data = self.paths.checkpoint_tmp(0, self.round, self.stop_at), str(rank).encode()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"rank-{rank:05d}").write_bytes(data)
        digest = new_hash()
        digest.update(data)
        files = [{"name": f"rank-{rank:05d}", "size": len(data), "hash": digest.hexdigest()}]
        return messages.WorkerShard(step=self.stop_at, files=files, seconds=0.1, blocked_s=0.1, hash_name=HASH_NAME)

    def exited(self, rank: int, *, exit_code: int | None = None, signal: int | None = None) -> None:
        """Tell that the process of a rank has ended."""
        end = {"exit_code": exit_code, "signal": signal, "last_lines": [], "oom": False}
        self.peer.send(wire.WorkerExit(round=self.round, rank=rank, **end))


async def agents(nodes: range, ranks: int, step_s: float, port: int, paths: RunPaths) -> None:
    """Run these nodes; on standard input a T is SLURM's TERM, a K the death of a rank of the first node."""
    signalled = asyncio.Event()
    made = [ScriptedAgent(node, ranks, step_s, paths) for node in nodes]

    def told() -> None:
        if os.read(0, 1) == b"T":
            signalled.set()
        else:
            made[0].exited(made[0].ranks[0], signal=9)

    asyncio.get_running_loop().add_reader(0, told)
    await asyncio.gather(*(agent.run(port, signalled) for agent in made))


# --- the leader ---


async def lead(
    paths: RunPaths, args: argparse.Namespace, port: int, others: list[subprocess.Popen[bytes]]
) -> dict[str, Any]:
    """Lead those nodes through start, steady state and an agreed stop; returns the figures."""
    spec = RunSpec.read(paths.spec)
    leader = Leader(
        spec, paths, host="n0", node_names=[f"n{i}" for i in range(args.nodes)], allocation=Allocation(paths)
    )
    lag = Lag()
    began = time.time()
    leading = asyncio.ensure_future(leader.run(connection.server(KEY, [port], peers=args.nodes, local=True)))
    watching = asyncio.ensure_future(lag.watch())
    history = History(paths.events)
    joined = await history.told("node_joined", leading, args.nodes)
    ordered = await history.told("round_started", leading)
    await asyncio.sleep(5)
    lag.most, before, wall = 0.0, time.process_time(), time.monotonic()
    await asyncio.sleep(args.seconds)
    cpu = (time.process_time() - before) / (time.monotonic() - wall)
    steady_lag, killed = lag.most, time.time()
    tell(others[-1:], b"K")
    restarted = await history.told("round_started", leading, 2)
    await history.told("first_step", leading, 2)
    await asyncio.sleep(3 * args.step)
    asked = time.time()
    tell(others, b"T")
    agreed = await history.told("agreed", leading)
    saved = await history.told("saved", leading)
    ending = await leading
    watching.cancel()
    return {
        "nodes": args.nodes, "ranks": args.ranks, "step_s": args.step, "codes": not args.no_codes,
        "joined_s": round(joined - began, 2), "ordered_s": round(ordered - began, 2),
        "leader_cpu": round(cpu, 4), "lag_max_s": round(steady_lag, 3),
        "restart_s": round(restarted - killed, 2), "agreed_s": round(agreed - asked, 2), "saved_s": round(saved - agreed, 2),
        "end": ending.state,
        "rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }  # fmt: skip


def tell(others: list[subprocess.Popen[bytes]], what: bytes) -> None:
    """Tell processes of agents what happens to them."""
    for other in others:
        assert other.stdin is not None
        other.stdin.write(what)
        other.stdin.flush()


class Lag:
    """How late the event loop is."""

    most = 0.0

    async def watch(self) -> None:
        """Measure it all the time."""
        while True:
            due = time.monotonic() + 0.05
            await asyncio.sleep(0.05)
            self.most = max(self.most, time.monotonic() - due)


class History:
    """The events of the run, read on from where it was read last: this process is the leader's, whose load is measured."""

    def __init__(self, path: Path) -> None:
        self.path, self.at = path, 0
        self.seen: dict[str, list[float]] = {}

    def look(self) -> None:
        """Read what is new."""
        if self.path.exists():
            with self.path.open("rb") as f:
                f.seek(self.at)
                whole, _, _ = f.read().rpartition(b"\n")
            self.at += len(whole) + 1 if whole else 0
            for line in whole.splitlines():
                event = json.loads(line)
                self.seen.setdefault(event["type"], []).append(float(event["t"]))

    async def told(self, type_: str, leading: asyncio.Future[Any], count: int = 1) -> float:
        """Wait until the history has told this so often; returns when it was."""
        while len(self.seen.get(type_, [])) < count:
            if leading.done():
                raise SystemExit(f"the run ended before {type_}: {leading.result()}")
            await asyncio.sleep(0.1)
            self.look()
        return self.seen[type_][count - 1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=250)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--step", type=float, default=1.0, help="seconds a step")
    parser.add_argument("--seconds", type=float, default=30.0, help="of steady state")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-codes", action="store_true")
    parser.add_argument("--agents", nargs=3, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard) if hard > 0 else FILES, hard))
    if args.no_codes:
        without_codes()
    if args.agents:
        first, end, port = args.agents
        asyncio.run(agents(range(first, end), args.ranks, args.step, port, RunPaths(args.run)))
        return
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        found = run(Path(folder), args, stack)
    print(json.dumps(found) if args.json else "\n".join(f"{name:12} {value}" for name, value in found.items()))


def run(folder: Path, args: argparse.Namespace, stack: contextlib.ExitStack) -> dict[str, Any]:
    """Start the agents' processes, and lead."""
    paths = RunPaths(folder)
    RunSpec(
        id="scale", name="scale", run_dir=str(folder), work=Work(kind="task", target="x:Y"), batch="local", nodes=args.nodes,
        tasks_per_node=args.ranks, timeout_min=60, backend="gloo", preflight=False, checkpoint=CheckpointSpec(interval_min=10_000),
    ).write(paths.spec)  # fmt: skip
    port = KEY.candidate_ports([20000, 32000])[0]
    flags = [*(["--no-codes"] if args.no_codes else []), "--ranks", str(args.ranks), "--step", str(args.step)]
    others = []
    for at in range(PROCESSES):
        nodes = [str(args.nodes * at // PROCESSES), str(args.nodes * (at + 1) // PROCESSES), str(port)]
        words = [sys.executable, __file__, *flags, "--run", str(folder), "--agents", *nodes]
        others.append(subprocess.Popen(words, stdin=subprocess.PIPE))
        stack.callback(others[-1].wait)
        stack.callback(others[-1].kill)
    return asyncio.run(lead(paths, args, port, others))


if __name__ == "__main__":
    main()
