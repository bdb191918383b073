"""Starts, watches and ends this node's workers of one round."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from launcher.node.agent import logs, memory
from launcher.node.agent.answers import ANSWERS, Answers
from launcher.node.agent.environment import worker_environment
from launcher.node.agent.progress import ProgressWindow
from launcher.node.agent.store import Tell
from launcher.node.agent.worker_channel import WorkerChannel
from launcher.node.forkserver.client import ForkServer, ForkServerError
from launcher.node.wire.messages import SHUTDOWN_S, RankPlace, StartRound, WorkerExit, WorkerSaid, WorkerUp
from launcher.redact import redact, redact_texts
from launcher.run.files import write_atomic
from launcher.run.message_lines import MessageReader
from launcher.run.messages import (
    FromWorker,
    WorkerAttached,
    WorkerFailure,
    WorkerFinished,
    WorkerOver,
    WorkerProgress,
    WorkerSaveFailed,
    WorkerWarning,
)
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.run.units import signal_name

WORKER_MAIN = "launcher.training.start.main:main"
_TAIL_WAIT_S = 1.0
"""Reading a log's end takes at most so long: a report must not wait for a slow disk."""
_STARTS_S = 2.0
"""A round that ends waits so long for forks that are under way; the leader waits 15 s for its end (`clear_s`)."""
_STACKS_S, _LAST_STACKS_S = 1.5, 10.0
"""So long workers have to write their stacks: milliseconds do, but on a busy node a process may not run for a second. The leader waits
two seconds for them at the end of a round (`dump_s`); one that hangs after its script is waited for by nobody.
"""
_GATHERED = frozenset(kind.type for kind in (WorkerProgress, *ANSWERS))
"""Kinds that the leader is told of for all ranks of a node together."""
_WATCHED = frozenset(kind.type for kind in (WorkerFailure, WorkerFinished, WorkerAttached, WorkerOver))
"""Kinds of a worker's messages that its agent looks at."""
_IN_WORDS = frozenset(kind.type for kind in (WorkerFailure, WorkerSaveFailed, WorkerWarning))
"""Kinds that hold sentences, a program's own among them: what looks like a secret is cut out before it leaves the host."""


class _Worker:
    """One worker: who it is, its channel and its log."""

    def __init__(self, place: RankPlace, key: str, log: Path) -> None:
        self.place = place
        self.rank = place.rank
        self.key = key
        self.log = log
        self.log_start = 0
        self.channel: WorkerChannel | None = None
        self.alive = False
        self.failed = False
        """It has reported that it failed; it may take long to end after that."""
        self.attached = False
        """A script that called `launcher.attach`: the leader tells it when to stop, not a signal."""
        self.over: int | None = None
        """A script's exit code, once only Python's own shutdown is left to do."""
        self.hung = False
        self.finished = False
        """It has done all its work."""
        self.gone = asyncio.Event()
        self.tasks: list[asyncio.Future[None]] = []
        """What was begun for it in the background."""

    @property
    def may_answer(self) -> bool:
        """Whether it may still answer what the leader asks."""
        return self.alive and not (self.failed or self.finished or self.over is not None)


class Crew:
    """The workers of one round on this node."""

    def __init__(
        self, spec: RunSpec, paths: RunPaths, server: ForkServer, order: StartRound, *, attempt: int, tell: Tell
    ) -> None:
        self.round = order.round
        self.progress = ProgressWindow(order)
        self._answers = Answers(order.round, lambda: (w.rank for w in self._workers if w.may_answer), tell)
        self._spec = spec
        self._paths = paths
        self._server = server
        self._order = order
        self._attempt = attempt
        self._tell = tell
        self._secrets = [value for name in spec.pass_names if (value := os.environ.get(name))]
        """Values of passed variables: what workers say of them in errors goes no further."""
        self._is_script = spec.work.kind in ("script", "module")
        """Scripts handle TERM themselves."""
        self._ending = False
        self._oom_before = 0
        self._noted = self._term_sent = False
        self._reader = MessageReader(FromWorker, lambda text: print(f"agent: {text}", file=sys.stderr, flush=True))
        self._workers = [
            _Worker(
                place, f"{paths.id}.rank.{self.round}.{place.rank}", paths.rank_log(attempt, self.round, place.rank)
            )
            for place in order.workers
        ]

    def pids(self) -> list[tuple[int, int, int]]:
        """Return rank, local rank and process of every live worker."""
        alive = (w for w in self._workers if w.alive)
        return [(w.rank, w.place.local_rank, pid) for w in alive if (pid := self._server.pid_of(w.key)) is not None]

    # --- start ---

    def start(self, shares: list[list[int]] | None) -> None:
        """Fork every worker, in the background; the leader is told of each."""
        self._ready = asyncio.ensure_future(self._server.ready())
        self._started = asyncio.ensure_future(self._start(shares))

    async def _start(self, shares: list[list[int]] | None) -> None:
        try:
            await self._ready
            self._oom_before, fds = await asyncio.to_thread(self._open_logs)
        except asyncio.CancelledError:
            return  # the round ended before the fork server was ready
        except (OSError, ForkServerError) as error:
            text = f"The log cannot be opened: {error}." if isinstance(error, OSError) else str(error)
            for worker in self._workers:
                self._tell_failed(worker, text)
            return
        try:
            await asyncio.gather(*(self._fork(w, fd, shares) for w, fd in zip(self._workers, fds, strict=True)))
        finally:
            for fd in fds:
                os.close(fd)

    def _open_logs(self) -> tuple[int, list[int]]:
        fds: list[int] = []
        try:
            for worker in self._workers:
                fds.append(logs.open_log(worker.log, share=self._spec.share))
                worker.log_start = os.fstat(fds[-1]).st_size
                if worker.rank == 0:
                    logs.link_latest(self._paths, worker.log)
                    logs.prune(self._paths, self._attempt, self.round)
        except OSError:
            for fd in fds:
                os.close(fd)
            raise
        return memory.kills(), fds

    async def _fork(self, worker: _Worker, log: int, shares: list[list[int]] | None) -> None:
        with contextlib.suppress(ForkServerError):  # the fork itself fails then, too
            await self._server.ready()  # one that was killed is started again first, which may take minutes
        if self._ending:
            return
        channel = worker.channel = WorkerChannel(lambda message: self._heard(worker, message))
        worker.alive = True
        try:
            pid = await self._server.fork(
                worker.key,
                self.round,
                WORKER_MAIN,
                [log, channel.theirs.fileno()],
                partial(self._exited, worker),
                env=worker_environment(self._spec, self._order, worker.place, attempt=self._attempt),
                cwd=self._spec.code_dir or str(self._paths.root),
                cpus=shares[worker.place.local_rank] if shares else None,
                script=self._is_script,
                exec=self._spec.start_method == "spawn",
            )
        except ForkServerError as error:
            if worker.alive:
                worker.alive = False
                self._tell_failed(worker, str(error))
            return
        finally:
            channel.theirs.close()
        self._tell(WorkerUp(round=self.round, rank=worker.rank, pid=pid))

    def _heard(self, worker: _Worker, values: dict[str, Any]) -> None:
        if values["type"] in _WATCHED:
            match self._reader.read(values):
                case WorkerFailure():
                    worker.failed = True
                case WorkerFinished():
                    worker.finished = True
                case WorkerAttached():
                    worker.attached = True
                case WorkerOver() as over:
                    worker.over = over.code
                    worker.tasks.append(asyncio.ensure_future(self._end_hung_shutdown(worker)))
        if values["type"] in _IN_WORDS:
            values = self._without_secrets(values)
        if values["type"] in _GATHERED and (said := self._reader.read(values)) is not None:
            if not isinstance(said, WorkerProgress):
                self._answers.take(worker.rank, said)
                return
            if self.progress.holds(worker.rank, said, time.monotonic()):
                return
        self._tell_held(worker)
        self._tell(WorkerSaid(round=self.round, rank=worker.rank, message=values))
        self._answers.look()  # it may be one that answers no more

    def _tell_held(self, worker: _Worker) -> None:
        """Tell what is held of a worker: another message of it follows."""
        self._answers.flush(worker.rank)
        if (held := self.progress.take(worker.rank)) is not None:
            self._tell(WorkerSaid(round=self.round, rank=worker.rank, message=held.to_wire()))

    def _without_secrets(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return a message with its sentences cut. What it is, and the files of its frames, stay: a passed value may be an ordinary word."""
        cut: dict[str, Any] = {
            **redact_texts(values, self._secrets),
            **{k: values[k] for k in ("type", "kind") if k in values},
        }
        if "frames" in values:
            cut["frames"] = [
                {**new, "file": old.get("file")} for new, old in zip(cut["frames"], values["frames"], strict=True)
            ]
        return cut

    async def _end_hung_shutdown(self, worker: _Worker) -> None:
        """Kill a script that has finished but does not exit, after writing its stacks to its log."""
        try:
            await asyncio.wait_for(worker.gone.wait(), SHUTDOWN_S)
        except asyncio.TimeoutError:
            worker.hung = True
            await self.dump([worker], _LAST_STACKS_S)
            await self._server.signal(worker.key, signal.SIGKILL)

    def _tell_failed(self, worker: _Worker, text: str) -> None:
        lines = [line for line in redact(text, self._secrets).splitlines() if line.strip()][-20:]
        self._tell(
            WorkerExit(
                round=self.round,
                rank=worker.rank,
                exit_code=1,
                signal=None,
                last_lines=lines,
                oom=False,
                by_us=False,
            )
        )

    # --- in between ---

    def to_workers(self, ranks: list[int] | None, message: dict[str, Any]) -> None:
        """Hand a message of the leader to some workers, or to all."""
        for worker in self._workers:
            if worker.channel is not None and (ranks is None or worker.rank in ranks):
                worker.channel.send(message)

    async def term(self, cause: str, left_s: float | None) -> None:
        """Forward TERM, once, to scripts, after a note that tells them how long they have."""
        if not self._is_script or self._noted:
            return
        self._noted = True
        deadline_t = None if left_s is None else round(time.time() + left_s, 1)  # by the clock that the script reads
        await _soon(lambda: self._leave_note({"cause": cause, "deadline_t": deadline_t, "left_s": left_s}), None)
        if self._term_sent:
            return
        self._term_sent = True
        for worker in self._workers:
            if worker.alive and not worker.attached:
                await self._server.signal(worker.key, signal.SIGTERM)

    def _leave_note(self, note: dict[str, Any]) -> None:
        path = self._paths.stop_note(self._attempt, self.round, self._order.group_rank)
        with contextlib.suppress(OSError):  # a full disk must not hold TERM back
            write_atomic(path, json.dumps(note) + "\n", durable=False)

    def term_came(self) -> None:
        """Note that SLURM sent TERM to every process of the step: scripts must not get it twice."""
        self._term_sent = True

    async def dump(self, workers: list[_Worker] | None = None, limit_s: float | None = None) -> None:
        """Have workers (all, unless some are given) write their stacks to their logs.

        They get ``limit_s``, else `_STACKS_S`. These are their last moments: stopped ones are continued for that.
        """
        workers = workers or [w for w in self._workers if w.alive]
        end = time.monotonic() + (_STACKS_S if limit_s is None else limit_s)
        before = await self._sizes()
        for worker in workers:
            await self._server.signal(worker.key, signal.SIGURG)
            await self._server.signal(worker.key, signal.SIGCONT)
        while True:  # faulthandler writes in milliseconds, unless the process is inside the kernel
            sizes = await self._sizes()
            if all(sizes[w.rank] > before[w.rank] for w in workers if w.alive) or time.monotonic() >= end:
                break
            await asyncio.sleep(0.05)

    async def _sizes(self) -> Counter[int]:
        """Return the sizes of the logs, by rank; 0 where the disk is slow."""
        sizes: Counter[int] = await _soon(lambda: Counter({w.rank: _size(w.log) for w in self._workers}), Counter())
        return sizes

    # --- the end ---

    def _exited(self, worker: _Worker, status: int) -> None:
        worker.alive = False
        if worker.channel is not None:
            worker.channel.pump()  # its last words come before its exit
            worker.channel.close()
        self._tell_held(worker)
        self._answers.look()
        worker.gone.set()
        worker.tasks.append(asyncio.ensure_future(self._report(worker, status, self._ending)))

    async def _report(self, worker: _Worker, status: int, by_us: bool) -> None:
        lines: list[str] = []
        killed_for_memory = False
        if status != 0 and (worker.failed or not by_us):
            tail = partial(logs.last_lines, worker.log, worker.log_start, self._secrets)
            lines, kills = await _soon(lambda: (tail(), memory.kills()), ([], 0))
            killed_for_memory = not by_us and status == -signal.SIGKILL and kills > self._oom_before
        shutdown = None if by_us else _shutdown_failure(worker, status)
        self._tell(
            WorkerExit(
                round=self.round,
                rank=worker.rank,
                exit_code=worker.over if shutdown else status if status >= 0 else None,
                signal=-status if status < 0 and not shutdown else None,
                last_lines=lines,
                oom=killed_for_memory,
                shutdown=shutdown,
                by_us=by_us,
            )
        )

    async def end(self) -> None:
        """End every worker and its descendants; return when none is left and the leader was told of every exit."""
        self._ending = True
        self._ready.cancel()
        # No longer: a disk that does not answer keeps it from the logs, and then it forks nothing; `clear` ends a stopped fork server.
        await asyncio.wait({self._started}, timeout=_STARTS_S)
        await self._server.clear(self.round)
        for worker in self._workers:
            if worker.alive:
                await worker.gone.wait()  # cleared, so its exit is already on the way
            await asyncio.gather(*worker.tasks, return_exceptions=True)


def _shutdown_failure(worker: _Worker, status: int) -> str | None:
    """Return what went wrong after the script's end, as the end of a sentence whose subject is the rank."""
    if worker.over is None or status == worker.over:
        return None
    if worker.hung:
        return f"did not end within {SHUTDOWN_S:.0f} s and was killed; its stacks are in its log"
    return f"was killed by {signal_name(-status)}" if status < 0 else f"exited with code {status}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


async def _soon(call: Callable[[], Any], otherwise: Any) -> Any:
    """Return what ``call`` returns, in a thread, or ``otherwise`` when the disk is slow."""
    work: Awaitable[Any] = asyncio.to_thread(call)
    try:
        return await asyncio.wait_for(asyncio.shield(work), _TAIL_WAIT_S)
    except asyncio.TimeoutError:
        return otherwise
