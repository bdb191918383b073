"""The agent: one process per node that obeys the leader and owns its node's workers.

`launcher.node.agent.entry` is what submitit calls; ``python -m launcher.node.agent RUN_DIR --node I`` runs one by hand.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import traceback
from collections.abc import Coroutine
from typing import Any

import psutil

from launcher.errors import ProtocolError
from launcher.node.agent.cpus import cpu_shares
from launcher.node.agent.description import node_facts
from launcher.node.agent.leader_search import LeaderSearch
from launcher.node.agent.preflight import Preflight
from launcher.node.agent.reruns import Reruns
from launcher.node.agent.store import Store
from launcher.node.agent.usage import Sampler
from launcher.node.agent.workers import Crew
from launcher.node.forkserver.client import ForkServer, ForkServerError
from launcher.node.wire import connection
from launcher.node.wire import messages as wire
from launcher.node.wire.hold_messages import EndRerun, ForwardStop, JoinRerun
from launcher.run import clock
from launcher.run.message_lines import MessageReader
from launcher.run.paths import RunPaths
from launcher.run.processes import mark_of
from launcher.run.spec import RunSpec
from launcher.slurm.ask_courier import call_courier

PRELOAD = (
    "torch",
    "torch.distributed",
    "launcher.training.start.main",
    "launcher.training.process.serve_store",
    "?launcher.training.start.preload",
)
"""What the fork server imports, by name: this floor knows no torch. A question mark: only if it is there."""
_EVERY_ROUND = 2**31
_SIGNALS = {getattr(signal, f"SIG{name}"): name for name in ("TERM", "INT", "USR2", "CONT", "USR1", "HUP")}
"""The signals that agents handle, and their names for the leader. INT (^C in a terminal) means the same as TERM; USR1 and HUP mean nothing,
and would end a process that does not handle them."""


class Agent:
    """One node's agent; `run` returns the process's exit code."""

    def __init__(
        self,
        spec: RunSpec,
        paths: RunPaths,
        *,
        node: int,
        host: str,
        search: LeaderSearch,
        server: ForkServer,
        borrowed: bool = False,
    ) -> None:
        """``borrowed``: the fork server, and the signals of this process, are those of a hold, of which this run is a rerun."""
        self.spec = spec
        self.paths = paths
        self.node = node
        self.host = host
        self._search = search
        self.server = server
        self._borrowed = borrowed
        self.reruns: Reruns | None = None
        """Those of a hold."""
        self._sampler = Sampler(self._pids, gpus=spec.gpus_per_node > 0)
        self._peer: connection.Peer | None = None
        self._waiting: list[wire.SignalHeard] = []
        self._gpu_nodes: list[int] = []
        """The NUMA node of each GPU."""
        self._attempt = 0
        self._joined = False
        """A leader has welcomed this agent, this one or an earlier one."""
        self._welcomed = False
        self._crews: dict[int, Crew] = {}
        self._stores: dict[int, Store] = {}
        self._tasks: set[asyncio.Future[Any]] = set()
        self._heard = 0.0
        self._silent = False
        """The leader has said nothing for too long."""
        self._failed = False
        """A background task of this agent has failed."""

    # --- life ---

    async def run(self) -> int:
        """Join the leader and do what it says until it says ``shutdown`` or is lost; nothing is left running.

        Returns 0 when told to leave, the code of `ProtocolError` when the leader was lost or never found.
        """
        if not self._borrowed:
            loop = asyncio.get_running_loop()
            for signum, name in _SIGNALS.items():
                loop.add_signal_handler(signum, self.signalled, name)
            self.server.start()
            self._task(self._look_at_imports())
        self._sampler.start()
        try:
            while (peer := await self._search.find()) is not None:
                if (code := await self._obey(peer)) is not None:
                    return code
                await self._end_all()
            return 0
        except ProtocolError as error:
            _say(str(error))
            return error.exit_code
        finally:
            self._sampler.stop()
            await self._leave_server()

    async def _leave_server(self) -> None:
        """End every worker, and the fork server unless it is borrowed."""
        if self.reruns is not None:
            await self.reruns.end()
        if not self._borrowed:
            await self.server.stop()
            return
        await self._end_all()  # the next rerun must find no process of this one, nor one that is still to be forked
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.server.clear(_EVERY_ROUND)

    async def _look_at_imports(self) -> None:
        """Log what went wrong, or may go wrong, in the fork server; rounds report its failure themselves."""
        try:
            found = await self.server.ready()
        except ForkServerError as error:
            if not self.server.stopping:
                _say(f"The fork server cannot start: {error}")
            return
        if found["threads"] != 1:
            _say(f"The fork server has {found['threads']} threads after importing torch: forking it is not safe.")

    async def _obey(self, peer: connection.Peer) -> int | None:
        """Do what the leader says; return the exit code, None where the leader is to be looked for again.

        It is where the connection closed before the leader had welcomed this agent, or where another leader takes its place.
        """
        facts = await asyncio.to_thread(
            node_facts,
            self.spec,
            self.paths,
            host=self.host.split("/")[0],
            local_address=peer.local_address,
            others=self._search.others,
        )
        self._gpu_nodes = facts.gpu_numa_nodes
        for text in facts.warnings:
            _say(text)
        self._peer = peer
        self._heard = time.monotonic()
        attempt = self._attempt if self._search.lost and self._joined else None
        mark = mark_of(os.getpid())
        self.tell(
            wire.AgentHello(node=self.node, host=self.host, pid=os.getpid(), attempt=attempt, facts=facts, mark=mark)
        )
        for kept in self._waiting:
            peer.send(kept)
        beat = self._task(self._beat(peer))
        try:
            if not await self._read(peer):
                return self._lost_leader()
            await self._leave_server()
            self.tell(wire.Leaving())
            await peer.hang_up()
            return 0
        finally:
            beat.cancel()
            self._peer = None
            peer.abort()

    def _lost_leader(self) -> int | None:
        """Return what `_obey` does when the leader is lost."""
        welcomed, self._welcomed = self._welcomed, False
        if self._failed:
            return ProtocolError.exit_code
        if not (welcomed or self._silent):
            _say("The connection to the leader closed before it answered; trying again.")
            return None
        how = (
            f"The leader did not answer for {wire.SILENCE_S:.0f} s"
            if self._silent
            else "The connection to the leader closed"
        )
        self._search.lost, self._silent = "silent" if self._silent else "closed", False
        waits = self._search.waits(welcomed=welcomed)
        _say(f"{how}; this agent ends its workers and {'waits for another leader' if waits else 'exits'}.")
        return None if waits else ProtocolError.exit_code

    async def _end_all(self) -> None:
        """End the workers and stores of every round; the fork server stays, with torch imported."""
        if self.reruns is not None:
            await self.reruns.end()
        for round_ in {*self._crews, *self._stores}:
            await self._end(round_)

    async def _read(self, peer: connection.Peer) -> bool:
        """Do what the leader says; True when told to leave, False when it is lost."""
        reader = MessageReader(wire.ToAgent, _say)
        async for values in peer.messages():
            self._heard = time.monotonic()
            order = reader.read(values)
            if isinstance(order, wire.Shutdown):
                return True
            if order is not None:
                self._do(order)
        return False

    async def _beat(self, peer: connection.Peer) -> None:
        """Say ``alive`` every second; hang up on a leader that answers nothing for `SILENCE_S`."""
        last = time.monotonic()
        while True:
            now = time.monotonic()
            if now - last > 2 * wire.HEARTBEAT_S:
                self._heard += now - last  # this process stood still, not the leader
            last = now
            if now - self._heard > wire.SILENCE_S:
                self._silent = True
                peer.abort()
                return
            for error in self._sampler.gpu_errors():
                self.tell(error)
            self.tell(self._alive())
            await asyncio.sleep(wire.HEARTBEAT_S)

    # --- helpers ---

    def _alive(self) -> wire.Alive:
        """Return the heartbeat; the progress is that of the newest round."""
        ranks = self._sampler.ranks
        if not self._crews:
            return wire.Alive(ranks=ranks)
        return wire.Alive(**self._crews[max(self._crews)].progress.heartbeat(ranks, time.monotonic()))

    def tell(self, message: wire.FromAgent) -> None:
        """Send one message to the leader; until it has welcomed this agent, keep signals."""
        if self._peer is not None:
            self._peer.send(message)
        if isinstance(message, wire.SignalHeard) and not self._welcomed:
            self._waiting.append(message)

    def _task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Future[Any]) -> None:
        """Hang up when a background task has failed: the leader must not wait for its answer."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            traceback.print_exception(error)
            _say(f"The agent failed: {error!r}.")
            self._failed = True
            if self._peer is not None:
                self._peer.abort()

    def _pids(self) -> list[tuple[int, int, int]]:
        return [worker for crew in list(self._crews.values()) for worker in crew.pids()]

    def signalled(self, name: str) -> None:
        """Tell the leader of a signal that this process has received."""
        if self.reruns is not None:
            self.reruns.signalled(name)
        if name in ("TERM", "INT"):
            self._search.term_at = self._search.term_at or time.monotonic()
            if self.spec.batch == "slurm":
                for crew in self._crews.values():
                    crew.term_came()
        self.tell(wire.SignalHeard(name=name))

    # --- the leader's orders ---

    def _do(self, order: wire.ToAgent) -> None:
        match order:
            case wire.Welcome():
                # Said again where a keeper comes or goes: a clock that has been followed is not set anew. The leader's own process has
                # its clock already.
                if not (self._welcomed or self._search.leads_here):
                    clock.set_to(order.t)
                self._attempt, self._welcomed, self._joined = order.attempt, True, True
                self._search.welcomed(order)
                if self._search.may_lead:
                    self._task(asyncio.to_thread(call_courier))
                self._waiting.clear()
            case wire.RunChecks():
                self._task(self._preflight(order))
            case wire.StartStore():
                loopback = self.spec.batch == "local" and not self.spec.interface
                store = self._stores[order.round] = Store(
                    self.server, self.paths.id, order.round, self.tell, loopback=loopback
                )
                folder = self.paths.round_logs(self._attempt, max(order.round, 0))
                self._task(store.start(folder / "store.log", share=self.spec.share))
            case wire.StartRound():
                crew = Crew(self.spec, self.paths, self.server, order, attempt=self._attempt, tell=self.tell)
                self._crews[crew.round] = crew
                crew.start(
                    cpu_shares(
                        os.sched_getaffinity(0),
                        psutil.cpu_count() or 1,
                        os.environ,
                        workers=len(order.workers),
                        cpus_per_task=self.spec.cpus_per_task,
                        gpu_nodes=self._gpu_nodes,
                    )
                )
            case wire.EndRound():
                self._task(self._end(order.round))
            case wire.ForwardTerm(round=number) if number in self._crews:
                self._task(self._crews[number].term(order.cause, order.left_s))
            case wire.ToWorkers(round=number) if number in self._crews:
                self._crews[number].to_workers(order.ranks, order.message)
            case wire.DumpStacks(round=number) if number in self._crews:
                self._task(self._dump(self._crews[number]))
            case JoinRerun() | ForwardStop() | EndRerun() if self.reruns is not None:
                self.reruns.obey(order)

    async def _preflight(self, order: wire.RunChecks) -> None:
        check = Preflight(self.spec, self.paths, self.server, node=self.node, attempt=self._attempt)
        self.tell(await check.run(order))

    async def _end(self, round_: int) -> None:
        crew, store = self._crews.get(round_), self._stores.get(round_)
        if crew is not None:
            await crew.end()
        if store is not None:
            store.end()
        await self.server.clear(round_)
        self._crews.pop(round_, None)
        self._stores.pop(round_, None)
        self.tell(wire.Cleared(round=round_))

    async def _dump(self, crew: Crew) -> None:
        await crew.dump()
        self.tell(wire.StacksWritten(round=crew.round))


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} agent: {text}", file=sys.stderr, flush=True)
