"""``python -m launcher.node.allocation.keeper RUN_DIR SRUN...``: run by the batch script beside srun; starts agents again that have died.

A process that dies costs no allocation: the nodes that are well keep theirs, with torch imported. The keeper waits beside the
batch script, outside every step: an srun inside the leader's own step would hear each signal of that, and take its tasks along.
The leader asks it for agents. The leader itself it watches: where it dies, or stands still, another one takes its place.

Each such agent has a step of its own: ``SRUN...`` are the words of a one-node srun up to the agent's module. SLURM is asked before: a job
that it is ending, or was cancelled, is left alone, and the batch script's teardown decides.

The batch script closes this process's standard input when its own srun has ended, and waits for this process: the job ends when
no step is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from launcher.errors import ProtocolError
from launcher.hosts import expand_hosts
from launcher.node.allocation.early_exits import (
    LEADER_REPLACED,
    LEADER_SILENT,
    SRUN_KILLED,
    leader_words,
    step_cancelled,
)
from launcher.node.allocation.reach import host_answers
from launcher.node.wire import connect, connection
from launcher.node.wire import messages as wire
from launcher.node.wire.keeper_messages import KeeperHello, KeeperWelcome, NotRevived, Revive, WithdrawRevival
from launcher.node.wire.proofs import LifeKey
from launcher.opening import read_whole
from launcher.run.asking import exists, patiently
from launcher.run.batch import GONE, LOG, SHELL
from launcher.run.message_lines import MessageReader
from launcher.run.paths import RunPaths
from launcher.run.processes import is_alive, mark_of
from launcher.run.spec import RunSpec
from launcher.run.units import signal_name, whole_number
from launcher.slurm.environ import job_environ
from launcher.slurm.handback import RUNNING
from launcher.slurm.jobs import job_facts

_MOST_SHORT_LIVED, _SHORT_S = 20, 60.0
"""Leaders in a row that answered and were gone so soon: none may have come so far as to count itself in restart.max_restarts."""
_MOST_FAILURES = 2
"""New leaders in a row that did not come so far as to answer: the teardown then decides."""
_UNHEARD_S = 60.0
"""slurmctld may be restarting: it is asked again for so long, and as long as a leader takes to start. Agents wait for one start more."""
_TERM_S = 60.0
"""A TERM that the batch script's processes received so lately asks for the end of the job (`scancel --full --signal=TERM`)."""
_EXIT_S = 2.0
"""A leader whose connection has closed ends within moments, or was cut off and answers again."""
_LAST_S = 10.0
"""Steps that are left when the run is over get so long."""
_GIVEN_UP_S = 150.0
"""The same for a leader, which asks SLURM for two minutes; and where nothing can be kept: agents wait a while for a leader."""
_POLL_S = 0.05


class Keeper:
    """Keeps the agents of one life of the allocation alive."""

    def __init__(
        self,
        paths: RunPaths,
        spec: RunSpec,
        secret: str,
        srun: Sequence[str],
        environ: Mapping[str, str],
        *,
        stdin: IO[Any] = sys.stdin,
    ) -> None:
        self.paths = paths
        self._stdin = stdin
        self._srun = srun
        self._environ = {k: v for k, v in environ.items() if not k.startswith(("SLURM_STEP_", "SLURM_STEPID", SHELL))}
        self._shell = whole_number(environ.get(SHELL, "")) or os.getppid()
        self._job = job_environ(environ)
        self._names = expand_hosts(self._job.node_list)
        self._key = LifeKey(secret, connection.allocation_life(environ), self._names[0])
        self._ports = self._key.candidate_ports(spec.port_range)
        self._init_s = spec.init_timeout_min * 60
        self._began = time.monotonic()
        self._start_s = 0.0
        """How long the first leader took to answer."""
        self._starting = False
        """The newest leader has not answered yet."""
        self._steps: dict[asyncio.subprocess.Process, int] = {}
        """The steps that run, and the node of each."""
        self._orders: dict[int, int] = {}
        """The newest order for each node; 0: it was withdrawn."""
        self._tasks: set[asyncio.Future[Any]] = set()
        self._alone = asyncio.Event()
        """The batch script's own srun has ended."""
        self._leader: KeeperWelcome | None = None
        """The newest that has answered."""
        self._leads: asyncio.subprocess.Process | None = None
        """The newest leader's step; None: it is in the batch script's."""
        self._peer: connection.Peer | None = None
        self._heard = self._served_at = 0.0
        self._term_at = -math.inf
        """When this process received TERM last."""
        self._over = False
        """The leader has said that nothing is to be kept any more."""
        self._code = 0

    async def run(self) -> int:
        """Keep agents and leader until the run is over, or nothing can be kept; then wait for the last step.

        Returns the exit code that the batch script takes for srun's; 0: none.
        """
        self._task(self._read_input())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._heard_term)
        failures = short_lived = 0
        while not self._over:
            peer = await self._find()
            if peer is not None:
                failures = 0
                await self._serve(peer)
                if self._over or not await self._leader_ended():
                    continue
                short_lived = short_lived + 1 if time.monotonic() - self._served_at < _SHORT_S else 0
            too_often = failures == _MOST_FAILURES or short_lived == _MOST_SHORT_LIVED
            end = time.monotonic() + _UNHEARD_S + self._start_s
            if self._leader is None or too_often or not await self._lends(lambda: time.monotonic() < end):  # noqa: B023
                break
            failures += 1
            if not await self._start_leader():
                break
        await self._rest()
        return self._code

    # --- the leader ---

    async def _start_leader(self) -> bool:
        """Start another leader; one that has not come so far as to answer is ended before."""
        if self._leads is not None and self._leads.returncode is None:
            self._leads.terminate()  # srun then ends its task
            await asyncio.wait({self._task(self._leads.wait())}, timeout=_LAST_S)
        _say(f"The leader on {self._names[0]} {LEADER_REPLACED}")
        ends = f"{self._leader.pid},{self._leader.mark}" if self._leader is not None else ""
        try:
            self._leads = await self._start(0, self._names[0], ends)
        except OSError as error:
            _say(f"srun cannot be started: {error.strerror or error}")
            return False
        self._starting = True
        return True

    async def _find(self) -> connection.Peer | None:
        """Connect to the leader; None when it has ended, or did not answer for longer than nodes are waited for."""
        search = self._task(connect.find_leader("127.0.0.1", self._ports, self._key, timeout_s=self._init_s))
        if self._starting and self._leads is not None:
            ended = self._task(self._leads.wait())
        else:
            ended = self._task(self._alone.wait() if self._leader is None else self._ends_within(math.inf))
        try:
            await asyncio.wait({search, ended}, return_when=asyncio.FIRST_COMPLETED)
            return search.result() if search.done() else None
        except ProtocolError:
            return None
        finally:
            search.cancel()
            ended.cancel()

    async def _serve(self, peer: connection.Peer) -> None:
        """Do what the leader asks for until it says that all is over, or is lost."""
        self._peer, self._heard = peer, time.monotonic()
        self._served_at = self._heard
        self._start_s = self._start_s or time.monotonic() - self._began
        peer.send(KeeperHello(pid=os.getpid(), mark=mark_of(os.getpid()), start_s=round(self._start_s, 1)))
        beat = self._task(self._beat(peer))
        reader = MessageReader(wire.ToAgent, _say)
        try:
            async for values in peer.messages():
                self._heard = time.monotonic()
                match reader.read(values):
                    case KeeperWelcome() as welcome:
                        self._leader, self._names, self._starting = welcome, welcome.nodes, False
                        self._start_s = max(self._start_s, welcome.start_s)
                    case Revive() as order:
                        self._orders[order.node] = order.order
                        self._task(self._revive(order))
                    case WithdrawRevival(node=node, order=number) if self._orders.get(node) == number:
                        self._withdraw(node)
                    case wire.Shutdown():
                        self._over = True
                        return
        finally:
            beat.cancel()
            self._peer = None
            peer.abort()

    async def _beat(self, peer: connection.Peer) -> None:
        """Have the leader answer every second; hang up on one that does not."""
        last = time.monotonic()
        while (now := time.monotonic()) - self._heard <= wire.SILENCE_S or now - last > 2 * wire.HEARTBEAT_S:
            if now - last > 2 * wire.HEARTBEAT_S:
                self._heard += now - last  # this process stood still, not the leader
            last = now
            peer.send(wire.Alive(ranks=[]))
            await asyncio.sleep(wire.HEARTBEAT_S)
        _say(f"{LEADER_SILENT} {wire.SILENCE_S:.0f} s.")
        self._kill_leader()
        peer.abort()

    async def _leader_ended(self) -> bool:
        """Whether the leader's process has ended; one that is there and answers has only lost this connection."""
        if self._leader is None or await self._ends_within(_EXIT_S):
            return True
        if await connect.answers("127.0.0.1", self._ports, self._key):
            return False
        self._kill_leader()
        await self._ends_within(_EXIT_S)  # one that cannot be killed is kept from writing by the newer claim
        return True

    async def _ends_within(self, limit_s: float) -> bool:
        end = time.monotonic() + limit_s
        while self._leader is not None and is_alive(self._leader.pid, self._leader.mark):
            if time.monotonic() >= end:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    def _kill_leader(self) -> None:
        """Kill a leader that stands still: going on, it would find another one in its place."""
        if self._leader is not None and is_alive(self._leader.pid, self._leader.mark):
            with contextlib.suppress(OSError):
                os.kill(self._leader.pid, signal.SIGKILL)

    # --- agents ---

    async def _revive(self, order: Revive) -> None:
        """Start the agent of a node again and wait for its end; the leader is told of it, unless it has asked for the node anew."""
        node, cancelled = order.node, False
        if not await asyncio.to_thread(host_answers, order.address, self._ports):
            why = "its host does not answer"
        elif not await self._lends(lambda: self._orders[node] == order.order and not self._over):
            why, cancelled = "SLURM is ending the job", await asyncio.to_thread(step_cancelled, self.paths)
        elif self._orders[node] != order.order:
            return  # it came back by itself
        else:
            try:
                step = await self._start(node, order.host, f"{order.pid},{order.mark}" if order.mark else "")
                why = _how_it_ended(await step.wait())
            except OSError as error:
                why = f"srun cannot be started: {error.strerror or error}"
        if self._peer is not None and self._orders[node] == order.order:
            self._peer.send(NotRevived(node=node, order=order.order, why=why, step_cancelled=cancelled))

    def _withdraw(self, node: int) -> None:
        """Start no agent of that node; end one that is starting: it would end the one that has come back."""
        self._orders[node] = 0
        for step, its in self._steps.items():
            if its == node and step.returncode is None:
                step.terminate()  # srun then ends its task

    async def _lends(self, is_wanted: Callable[[], bool]) -> bool:
        """Ask SLURM whether the job is to run on, in this life; ask again while it does not answer and that ``is_wanted``."""
        while (facts := await asyncio.to_thread(job_facts, self._job.own_id)) is None:
            if not is_wanted():
                return False
            await asyncio.sleep(1.0)
        if time.monotonic() - self._term_at < _TERM_S:
            return False
        same_life = facts.restarts in (None, self._job.restart_count)
        if facts.state not in RUNNING or not same_life or facts.preempt_t is not None:
            return False
        return not await asyncio.to_thread(self._was_ended)

    def _heard_term(self) -> None:
        self._term_at = time.monotonic()

    def _was_ended(self) -> bool:
        """Whether the run has an outcome, the leader has said why it cannot go on, or somebody cancelled a step: the run, that means."""
        try:
            if exists(self.paths.outcome, self.paths.root):
                return True
        except OSError:
            pass  # a new leader waits for the folder
        return bool(leader_words(self.paths)) or step_cancelled(self.paths)

    async def _start(self, node: int, host: str, ends: str) -> asyncio.subprocess.Process:
        """Start the agent of a node in a step of its own. Its log is the node's: submitit names them by task.

        ``ends``: PID,MARK of the agent that it replaces, "" where they are not known. Raises OSError.
        """
        log = self.paths.submitit / f"{self._job.own_id}_{node}_log.out"
        words = [self._srun[0], f"--nodelist={host}", *self._srun[1:]]
        again = [str(self.paths.root), "--node", str(node), "--again", self._list()]
        again += [f"--ends={ends}"] if ends else []
        step = await asyncio.create_subprocess_exec(
            *words,
            *again,
            stdin=asyncio.subprocess.DEVNULL,
            env={**self._environ, LOG: str(log)},
            start_new_session=True,
        )
        self._steps[step] = node
        self._task(self._forget(step))
        return step

    def _list(self) -> str:
        """Return the names of all nodes as one word: SLURM's short form where it means the same, as a word is at most 128 KiB long."""
        short = self._job.node_list
        return short if expand_hosts(short) == self._names else ",".join(self._names)

    async def _forget(self, step: asyncio.subprocess.Process) -> None:
        code = await step.wait()
        if code < 0 and not self._over:
            _say(SRUN_KILLED)
        if self._steps.pop(step) == 0:
            self._code = code if code == GONE else 0

    # --- the end ---

    async def _read_input(self) -> None:
        """Wait until the batch script closes this process's standard input, or has gone itself."""
        mark = mark_of(self._shell)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), self._stdin)
        await reader.read()
        if not is_alive(self._shell, mark):
            os._exit(1)  # SLURM ends what is left of the job
        self._alone.set()

    async def _rest(self) -> None:
        """Wait until the batch script's srun has ended, and every step; what stays then is killed."""
        await self._alone.wait()
        began = time.monotonic()
        while self._steps:
            # A leader hands the job back at its end, and slurmctld may be restarting.
            limit_s = _LAST_S if self._over and 0 not in self._steps.values() else _GIVEN_UP_S
            if time.monotonic() - began > limit_s:
                break
            await asyncio.sleep(_POLL_S)
        # Where its srun was killed, the leader's step may go on.
        await self._ends_within(_GIVEN_UP_S - (time.monotonic() - began))
        for step in list(self._steps):
            with contextlib.suppress(ProcessLookupError):
                step.kill()

    def _task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _how_it_ended(code: int) -> str:
    how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
    return f"its step {how}"


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} keeper: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Keep one life of the allocation; returns the exit code of `Keeper.run`."""
    # What SLURM sends to the batch script's processes is the leader's business.
    for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    if len(sys.argv) < 3:
        print("usage: python -m launcher.node.allocation.keeper RUN_DIR SRUN...", file=sys.stderr)
        return 2
    paths = RunPaths(Path(sys.argv[1]).absolute())
    try:
        spec = patiently(lambda: RunSpec.read(paths.spec), paths.root)
        secret = patiently(lambda: read_whole(paths.secret), paths.root).decode().strip()
    except (OSError, ValueError) as error:
        _say(f"The run directory {paths.root} cannot be read: {error}. Agents that die are not started again.")
        return 1
    # Not asyncio.run: that waits for threads, and one may wait for a slow file system, or for SLURM.
    loop = asyncio.new_event_loop()
    return loop.run_until_complete(Keeper(paths, spec, secret, sys.argv[2:], os.environ).run())


if __name__ == "__main__":
    code = 3  # a fault of its own: the batch script starts another one
    try:
        code = main()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
