"""Leads an attempt: the leader runs beside the first node's agent and decides; the agents obey.

It alone writes the run's history and commits its checkpoints. It runs in one asyncio loop and never blocks it: fsync,
hashing and SLURM's commands run in threads. What happened lies on the `Board`; `Inbox` and `TimedChecks` fill it; this module
is the path of an attempt: wait for nodes, rounds, one decision after each, the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Any, TypeVar

from launcher.errors import ProtocolError, RunDirError
from launcher.node.allocation.allocation import Allocation, SignalMeaning, window_s
from launcher.node.checkpoints import fence
from launcher.node.leader import past
from launcher.node.leader.board import OVER, Board, Timing, caused
from launcher.node.leader.finish import Ending, give_back, leave
from launcher.node.leader.folder_retries import Blocking, until_answered
from launcher.node.leader.gather_nodes import await_nodes, preflight
from launcher.node.leader.inbox import Inbox
from launcher.node.leader.journal import HistoryWriter
from launcher.node.leader.lost_folder import as_gone
from launcher.node.leader.nodes import Node, Nodes
from launcher.node.leader.own_files import newest_of
from launcher.node.leader.run_round import drive_round
from launcher.node.leader.saving import Saver
from launcher.node.leader.timed_checks import TimedChecks
from launcher.node.leader.tracking import Tracking
from launcher.node.leader.wait_for_runs import await_predecessors
from launcher.node.policy.budgets import Budgets
from launcher.node.policy.decisions import Action, Decision, Evidence, Kind, Situation, decide
from launcher.node.sidecars.notify import Notifier, owed
from launcher.node.wire import connection
from launcher.run import clock, event_lines
from launcher.run.asking import PATIENCE_S, exists
from launcher.run.causes import MEANINGS
from launcher.run.events import Hang, NodeLost, WorkerFailed
from launcher.run.gone import Anchor, unanswered
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.run.state import is_requested, keep_room

_T = TypeVar("_T")

_ASK_AGAIN_S = 1.0
"""Every agent hears every signal: SLURM is asked once for all of them, and again when one hears it again."""
_ASK_WHY_S = 60.0
"""Once the work is saved, SLURM is asked for so long why the signal came. If it wanted the job's end, it kills the job by then."""
_REQUEST_S, _REQUEST_POLL_S = 60.0, 1.0
"""A USR2 that nothing explains may announce a user's request: NFS clients may see that file this late."""
_REFUSED_AGAIN_S = 10.0
"""The pause before ranks that all ended themselves start again: a short failure of the file system is over by then."""
_TRACKER_S = 30.0
"""A script's first round waits so long, at most, for the tracker run that its ranks are to continue."""


@dataclass
class Leader:
    """Leads one attempt of a run.

    Use: ``ending = await Leader(spec, paths, host=..., node_names=[...]).run(serve)``, where ``serve(hub)`` listens on one of
    ``spec.port_range``, hands the `Hub` what it hears, and returns a function that stops listening. The leader's own node
    joins over the same transport as every other.
    """

    spec: RunSpec
    paths: RunPaths
    host: str
    node_names: list[str]
    allocation: InitVar[Allocation | None] = None
    timing: Timing = field(default_factory=Timing)
    blocking: Blocking = asyncio.to_thread
    _allocation: Allocation = field(init=False)
    _board: Board = field(init=False)
    _inbox: Inbox = field(init=False)
    _asked: dict[str, tuple[float, set[int]]] = field(default_factory=dict)
    """By name of a signal: when SLURM was last asked about it, and the nodes whose agents have heard it since."""
    _idle_signals: dict[str, float] = field(default_factory=dict)
    """By name of a signal that means nothing: when it was noted last."""
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def __post_init__(self, allocation: Allocation | None) -> None:
        self._allocation = allocation or _allocation_of(self.spec, self.paths)

    # --- the path of an attempt ---

    async def run(self, serve: connection.Serve) -> Ending:
        """Lead until the attempt ends; every other agent has left when this returns.

        Raises RunDirError when the run directory cannot be read or written, for minutes where that may pass.
        """
        ended = await self._patiently(lambda: past.ended_already(self.paths, self._allocation))
        if ended is not None:
            return ended
        board = self._board = await self._begin()
        inbox = self._inbox = Inbox(board, self._signal)
        try:
            stop_listening = await serve(inbox)
        except ProtocolError as error:
            evidence = caused(Kind.PORTS_TAKEN, f"{str(error).rstrip('.')} on {self.host}", (self.host,))
            return await self._end(await self._decide(evidence), evidence)
        # Not before the leader listens: its agents give up after a minute. A daemon, since no end waits for it.
        threading.Thread(target=fence.empty_trash, args=(self.paths,), name="trash", daemon=True).start()
        ticker = asyncio.get_running_loop().create_task(self._tick(TimedChecks(board, inbox.lose)))
        try:
            return await self._lead()
        finally:
            ticker.cancel()
            stop_listening()

    async def _begin(self) -> Board:
        """Claim the attempt and learn what earlier ones did."""
        allocation, paths, spec = self._allocation, self.paths, self.spec
        attempt = await self._patiently(
            lambda: fence.claim_attempt(
                paths,
                job_id=allocation.job_id,
                life=connection.allocation_life(os.environ),
                host=self.host,
                pid=os.getpid(),
            )
        )
        await self._patiently(lambda: paths.checkpoints.mkdir(mode=0o750, exist_ok=True))
        await self._patiently(lambda: fence.drop_stale(paths, attempt))
        anchor = await self._patiently(lambda: Anchor(paths.root))
        await self.blocking(lambda: keep_room(paths))
        told = await self._patiently(lambda: event_lines.recall(paths.events))
        requested = await self._patiently(lambda: exists(paths.request, paths.root))
        budgets = Budgets().feed_all(told)
        history = HistoryWriter(paths, attempt, threaded=self.blocking is asyncio.to_thread, heard=budgets.feed)
        changed = asyncio.Event()
        saver = Saver(spec.checkpoint, paths, history, blocking=self.blocking, wake=changed.set)
        board = Board(
            spec, paths, attempt, allocation, history, Nodes(self.node_names), saver, budgets, self.blocking, self.timing,
            changed, self.host, clock.now(),
            Notifier(spec, os.environ, history.warn, history.notified, told), Tracking(spec, paths, attempt, history.warn), anchor,
            first_of_submission=past.first_of_submission(told),
            failures=sum(isinstance(e, (WorkerFailed, NodeLost, Hang)) for e in told),
        )  # fmt: skip
        history.event(
            "attempt_started",
            job_id=allocation.job_id,
            host=self.host,
            restart_count=allocation.restart_count,
            submitted_t=past.waiting_since(told),
        )
        if attempt and (pattern := spec.checkpoint.watch):  # what earlier attempts have left is no progress of this one
            await self.blocking(lambda: newest_of(paths.root, pattern, board.own_files))
        if news := owed(told):
            board.notifier.tell("preempted", f"{news} The run continues as attempt {attempt}.")
        await board.tracking.start()
        if requested:
            _forget_request(paths)
            board.stop_wanted(Kind.USER_STOP, "the user ran `launcher cancel`", None)
        return board

    async def _patiently(self, work: Callable[[], _T]) -> _T:
        """Return what ``work`` returns, in a thread; retry while the run's folder does not answer. Raises RunDirError."""
        say = lambda error: print(f"{error}; retrying", file=sys.stderr, flush=True)  # noqa: E731
        try:
            return await until_answered(self.blocking, work, self.paths.root, refused=say)
        except OSError as error:
            text = unanswered(self.paths.root, error)
            await self.blocking(lambda: self._allocation.remark(text))  # the agent's log may be on the same file system
            raise RunDirError(text) from error

    async def _lead(self) -> Ending:
        board = self._board
        evidence = await self._gather()
        if evidence is None and self.spec.after:
            held = await await_predecessors(board)
            if isinstance(held, str):
                return await self._end(Decision(Action.CANCEL, held, -1), Evidence(Kind.CANCELLED, held))
            evidence = held
        if evidence is None and self.spec.work.kind in ("script", "module") and "mlflow" in self.spec.trackers:
            await board.tracking.known(_TRACKER_S)
        number = 0
        while True:
            if evidence is None:
                evidence = await as_gone(board, await drive_round(board, number))
                number += 1
            if evidence.kind is Kind.UNKNOWN_SIGNAL:
                evidence = await self._ask_why_again(evidence)
            decision = await self._decide(evidence)
            if decision.action is not Action.NEW_ROUND:
                break
            if evidence.refusals:
                await board.until(lambda now: board.interrupted, timeout_s=_REFUSED_AGAIN_S)
            evidence = None
        return await self._end(decision, evidence)

    async def _end(self, decision: Decision, evidence: Evidence) -> Ending:
        board = self._board
        board.phase = "ended"
        if decision.action is Action.REQUEUE:
            return await give_back(board, decision, evidence)
        return await leave(board, decision, evidence)

    async def _gather(self) -> Evidence | None:
        """Wait for the nodes and check them; a signal that turns out to mean nothing does not end that."""
        board = self._board
        while True:
            evidence = await await_nodes(board)
            if evidence is None and self.spec.preflight:
                evidence = await preflight(board)
            if evidence is not None and evidence.kind is Kind.UNKNOWN_SIGNAL:
                evidence = await self._ask_why_again(evidence)
            if evidence is None or evidence.kind is not Kind.FALSE_ALARM:
                return evidence

    async def _decide(self, evidence: Evidence) -> Decision:
        board = self._board
        if await board.blocking(lambda: fence.is_over(self.paths, board.attempt)):  # this leader may have stood still
            evidence = OVER
        decision = decide(evidence, self._situation(evidence))
        if decision.action is Action.REQUEUE and await board.blocking(
            lambda: is_requested(self.paths) or board.allocation.cancelled()
        ):
            # `launcher cancel` or scancel came after, or instead of, what was heard: requeueing would resurrect the job.
            _forget_request(self.paths)
            board.cancelled = True
            decision = decide(evidence, self._situation(evidence))
        if decision.action is not Action.LEAVE:
            board.history.event(
                "decision",
                evidence=evidence.kind.value,
                action=decision.action.value,
                reason=decision.reason,
                row=decision.row,
            )
        return decision

    async def _ask_why_again(self, evidence: Evidence) -> Evidence:
        """Ask SLURM again why a signal came: the stop has taken a while, and SLURM may answer by now."""
        board = self._board
        name = "TERM" if "TERM" in self._asked else "USR2"
        end = board.now() + _ASK_WHY_S
        while (meaning := await board.blocking(lambda: board.allocation.meaning(name))).kind == "unknown":
            if board.now() >= end or board.fenced:
                return evidence
            await asyncio.sleep(2.0)
        if board.interrupt and board.interrupt.evidence.kind is not evidence.kind:  # another signal came meanwhile
            return board.interrupt.evidence
        board.cancelled = board.cancelled or meaning.kind == "cancelled"
        board.history.event("signal", host=board.host, name=name, meaning=meaning.kind)
        if meaning.kind == Kind.FALSE_ALARM.value:
            board.interrupt = None
        return Evidence(Kind(meaning.kind), MEANINGS[meaning.kind].clause.format(name=name))

    def _situation(self, evidence: Evidence) -> Situation:
        board, spec, budgets = self._board, self.spec, self._board.budgets
        round_, stop = board.round, board.stop
        hours = budgets.spent_with_current_s(clock.now()) / 3600
        return Situation(
            nodes_left=len(board.nodes.healthy) >= spec.nodes,
            may_requeue=board.allocation.requeues and spec.restart.requeue,
            restarts_left=budgets.restarts[evidence.kind.value] < spec.restart.max_restarts,
            attempts_left=budgets.idle_attempts <= spec.restart.max_restarts,
            hours_left=hours < spec.restart.max_total_hours,
            cancelled=board.cancelled,
            trained=budgets.rounds > 0,
            finished=round_ is not None
            # every rank has done all its work: also those that had ended before the stop, which were not asked
            and (round_.all_finished or (stop is not None and stop.all_done(round_.world_size))),
        )

    async def _tick(self, checks: TimedChecks) -> None:
        told = False
        while True:
            try:
                await checks.tick()
            except Exception as error:  # a fault of ours must not end the watch over silence, hangs and saves
                traceback.print_exc()
                if not told:
                    self._board.history.warn(f"a check of the leader failed: {type(error).__name__}: {error}")
                told = True
            await asyncio.sleep(self.timing.tick_s)

    # --- signals ---

    def _signal(self, name: str, node: Node) -> None:
        """Note that an agent received a signal; a thread asks SLURM what it means."""
        board = self._board
        if board.phase == "ended" or name == "CONT":
            return
        if name in ("USR1", "HUP"):
            self._note_idle_signal(name, node)
            return
        now, sent, name = board.now(), name, "TERM" if name == "INT" else name
        # SLURM sends it to every process of the step: scripts, or what they started, have heard it, whatever they exit with.
        round_ = board.round if board.allocation.requeues else None
        heard = round_ is not None and round_.script
        if round_ is not None and heard and (name == "TERM" or round_.handles_usr2):
            board.term_sent = board.term_sent or name == "TERM"
            self._inbox.pardon(round_, _ASK_AGAIN_S + 1)
        asked, told = self._asked.get(name, (-_ASK_AGAIN_S, set()))
        if now - asked < _ASK_AGAIN_S and node.index not in told:
            told.add(node.index)
            return
        board.usr2_sent = board.usr2_sent or (name == "USR2" and heard)  # until the answer says that it meant nothing
        self._asked[name] = now, {node.index}
        task = asyncio.get_running_loop().create_task(self._ask(name, node.host, sent))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, name: str, host: str, sent: str) -> None:
        board = self._board
        try:
            meaning = await board.blocking(lambda: board.allocation.meaning(name))
        except Exception as error:  # whatever is wrong, a signal must not go unheard
            traceback.print_exc()
            board.history.warn(f"SLURM could not be asked why {sent} came: {error}")
            meaning = SignalMeaning("unknown")
        left = None if meaning.left_s is None else round(meaning.left_s, 1)
        board.history.event("signal", host=host, name=sent, meaning=meaning.kind, left_s=left)
        if meaning.kind == "user":
            _forget_request(self.paths)
        if meaning.kind == Kind.FALSE_ALARM.value:
            await self._await_request()
            self._inbox.usr2_meant_nothing()
            return
        text = MEANINGS[meaning.kind].clause.format(name=sent)
        left_s = meaning.left_s
        if meaning.kind == Kind.TIME_LIMIT.value and left_s is not None:
            # SLURM sends --signal up to 60 s early: training keeps that time.
            lead_s = float(self.spec.restart.signal_lead_s)
            # A script with its own handler for USR2 may have stopped already.
            end = board.now() + left_s - self.spec.site.kill_wait_s - lead_s
            while board.now() < end and not (board.round and any(r.stopped is not None for r in board.round.ranks)):
                await asyncio.sleep(min(1.0, end - board.now()))
            left_s = min(left_s, lead_s)
        if board.phase != "ended":
            board.stop_wanted(Kind(meaning.kind), text, window_s(meaning.kind, self.spec, left_s))

    def _note_idle_signal(self, name: str, node: Node) -> None:
        """Note a signal that means nothing to the launcher: every agent of the step reports it, one line says so."""
        now = self._board.now()
        if now - self._idle_signals.get(name, -_ASK_AGAIN_S) >= _ASK_AGAIN_S:
            self._idle_signals[name] = now
            self._board.history.event("signal", host=node.host, name=name, meaning="nothing")

    async def _await_request(self) -> None:
        """Look for a user's request until every node would see it: nothing else explains the USR2. Training continues meanwhile."""
        board = self._board
        end = board.now() + _REQUEST_S
        most = end + PATIENCE_S
        while board.now() < end and board.phase != "ended" and board.interrupt is None:
            await asyncio.sleep(_REQUEST_POLL_S)
            try:
                found = await board.blocking(lambda: exists(self.paths.request, self.paths.root))
            except OSError:
                end = min(board.now() + _REQUEST_S, most)
                continue
            if found:
                _forget_request(self.paths)
                board.stop_wanted(Kind.USER_STOP, MEANINGS["user"].clause, None)


def _allocation_of(spec: RunSpec, paths: RunPaths) -> Allocation:
    if spec.batch == "slurm" and os.environ.get("SLURM_JOB_ID"):
        from launcher.node.allocation.slurm_allocation import SlurmAllocation

        return SlurmAllocation(spec, paths)
    return Allocation(paths)


def _forget_request(paths: RunPaths) -> None:
    with contextlib.suppress(OSError):
        paths.request.unlink()
