"""Leads an attempt: the leader runs beside the agent of its node, the first one at the start, and decides; the agents obey.

It alone writes the run's history and commits its checkpoints. It runs in one asyncio loop and never blocks it: fsync,
hashing and SLURM's commands run in threads. What happened lies on the `Board`; `Inbox` and `TimedChecks` fill it; this module
is the path of an attempt: wait for nodes, rounds, one decision after each, the end.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from launcher.errors import ProtocolError, RunDirError
from launcher.node.allocation.allocation import Allocation
from launcher.node.checkpoints import claims, trash
from launcher.node.leader import past, replacements
from launcher.node.leader.board import OVER, Board, Timing, caused
from launcher.node.leader.finish import Ending, give_back, leave
from launcher.node.leader.folder_retries import Blocking, until_answered
from launcher.node.leader.gather_nodes import await_nodes, preflight
from launcher.node.leader.hold import HOLDING, Hold, end_of_hold
from launcher.node.leader.inbox import Inbox
from launcher.node.leader.journal import HistoryWriter
from launcher.node.leader.lost_folder import as_gone
from launcher.node.leader.nodes import Nodes
from launcher.node.leader.own_files import newest_of
from launcher.node.leader.revivals import await_revived
from launcher.node.leader.run_round import drive_round, last_is_saved
from launcher.node.leader.saving import Saver
from launcher.node.leader.stop_signals import Signals
from launcher.node.leader.timed_checks import TimedChecks
from launcher.node.leader.tracking import Tracking
from launcher.node.leader.wait_for_runs import await_predecessors
from launcher.node.policy.budgets import Budgets
from launcher.node.policy.decisions import TAKEN_AWAY, Action, Decision, Evidence, Kind, Situation, decide
from launcher.node.sidecars.notify import Notifier, owed
from launcher.node.wire import connection
from launcher.node.wire.messages import Shutdown
from launcher.run import clock, event_lines
from launcher.run.causes import MEANINGS
from launcher.run.events import Event, Hang, NodeLost, WorkerFailed
from launcher.run.gone import Anchor, unanswered
from launcher.run.not_finite_since import not_finite_since
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.run.state import is_requested, keep_room, read_request, read_state

_T = TypeVar("_T")

_REFUSED_AGAIN_S = 10.0
"""The pause before ranks that all ended themselves start again: a short failure of the file system is over by then."""
_TRACKER_S = 30.0
"""A script's first round waits so long, at most, for the tracker run that its ranks are to continue."""


@dataclass
class Leader:
    """Leads one attempt of a run.

    Use: ``ending = await Leader(spec, paths, host, node_names, allocation).run(serve)``, where ``serve(hub)`` listens on one of
    ``spec.port_range``, hands the `Hub` what it hears, and returns a function that stops listening. The leader's own node
    joins over the same transport as every other.
    """

    spec: RunSpec
    paths: RunPaths
    host: str
    node_names: list[str]
    allocation: Allocation
    timing: Timing = field(default_factory=Timing)
    blocking: Blocking = asyncio.to_thread
    revived: bool = False
    """A leader of this life of the allocation has died: this one goes on in its attempt."""
    lost: Sequence[str] = ()
    """Hosts that SLURM has removed from the job. The leader before this one was on the first of the job's hosts that is among them."""
    _board: Board = field(init=False)
    _signals: Signals = field(init=False)
    _hold: Hold | None = None
    """The reruns of a run that only keeps its allocation."""
    _first_round: int = 0
    _wanted: tuple[Kind, str, float | None] | None = None
    """The stop that was asked for before this leader had begun."""
    _checked: bool = False
    """The nodes have been checked in this attempt, for a leader that died."""

    def stop(self, kind: Kind, text: str, left_s: float | None) -> None:
        """Stop the run for a reason that no signal has to announce: its hold asks for it. ``left_s``: until it must be complete."""
        self._wanted = kind, text, left_s
        if hasattr(self, "_board"):
            self._board.stop_wanted(kind, text, left_s)

    # --- the path of an attempt ---

    async def run(self, serve: connection.Serve) -> Ending:
        """Lead until the attempt ends; every other agent has left when this returns.

        Raises RunDirError when the run directory cannot be read or written, for minutes where that may pass.
        """
        ended = await self._patiently(lambda: past.ended_already(self.paths, self.allocation))
        if ended is not None:
            return ended
        board = self._board = await self._begin()
        self._hold = Hold(board) if self.spec.hold else None
        inbox = Inbox(board, lambda name, node: self._signals.heard(name, node), self._hold)
        self._signals = Signals(board, inbox)
        try:
            stop_listening = await serve(inbox)
        except ProtocolError as error:
            evidence = caused(Kind.PORTS_TAKEN, f"{str(error).rstrip('.')} on {self.host}", (self.host,))
            return await self._end(await self._decide(evidence), evidence)
        trash.empty_in_thread(self.paths)  # not before the leader listens: its agents give up after a minute
        ticker = asyncio.get_running_loop().create_task(self._tick(TimedChecks(board, inbox.lose)))
        try:
            return await self._lead()
        except BaseException:
            for node in board.nodes.all:  # nobody takes the place of a leader that fails by itself
                node.send(Shutdown())
            board.tracking.kill()
            board.history.abandon()
            raise
        finally:
            ticker.cancel()
            stop_listening()

    async def _begin(self) -> Board:
        """Claim the attempt and learn what earlier ones did."""
        allocation, paths, spec = self.allocation, self.paths, self.spec
        left = await self.blocking(lambda: read_state(paths.state)) if self.revived else {}
        clock.set_from(left)
        claim_it = claims.claim_takeover if self.revived else claims.claim_attempt
        claim = await self._patiently(
            lambda: claim_it(
                paths,
                job_id=allocation.job_id,
                life=connection.allocation_life(os.environ),
                host=self.host,
                pid=os.getpid(),
            )
        )
        attempt = claim.attempt
        await self._patiently(lambda: paths.checkpoints.mkdir(mode=0o750, exist_ok=True))
        await self._patiently(lambda: trash.move_stale(paths, claim))
        anchor = await self._patiently(lambda: Anchor(paths.root))
        await self.blocking(lambda: keep_room(paths))
        told = await self._patiently(lambda: event_lines.recall(paths.events))
        requested = await self._patiently(lambda: read_request(paths))
        budgets = Budgets().feed_all(told)
        history = HistoryWriter(paths, claim, threaded=self.blocking is asyncio.to_thread, heard=budgets.feed)
        changed = asyncio.Event()
        bad_since = min(not_finite_since(told).values(), default=None)
        saver = Saver(spec.checkpoint, paths, history, blocking=self.blocking, wake=changed.set, bad_since=bad_since)
        board = Board(
            spec, paths, claim, allocation, history, Nodes(self.node_names), saver, budgets, self.blocking, self.timing,
            changed, self.host, past.began(told, claim) or clock.now(),
            Notifier(spec, os.environ, history.warn, history.notified, told), Tracking(spec, paths, attempt, history.warn), anchor,
            first_of_submission=past.first_of_submission(told),
            moved=bool(self.lost),
            failures=sum(isinstance(e, (WorkerFailed, NodeLost, Hang)) for e in told),
        )  # fmt: skip
        if claim.leader:
            self._succeed(board, told, left)
        if not claim.leader or past.began(told, claim) is None:
            history.event(
                "attempt_started",
                job_id=allocation.job_id,
                host=self.host,
                restart_count=allocation.restart_count,
                submitted_t=past.waiting_since(told),
            )
        if news := owed(told):
            board.notifier.tell("preempted", f"{news} The run continues as attempt {attempt}.")
        await board.tracking.start()
        if requested is not None:
            if name := requested.get("signal"):
                board.stop_wanted(Kind.TERMINATED, MEANINGS["terminated"].clause.format(name=name), None)
            else:
                board.stop_wanted(Kind.USER_STOP, "the user ran `launcher cancel`", None)
        if self._wanted is not None:
            board.stop_wanted(*self._wanted)
        return board

    def _succeed(self, board: Board, told: list[Event], left: Mapping[str, Any]) -> None:
        """Take over what the leader that died knew of the attempt; ``left`` is its last picture of the run."""
        silent_s = clock.since(left)
        before = past.leader_host(told, board.claim) or self.host
        board.history.event(
            "leader_revived",
            host=before,
            leader=board.claim.leader,
            seconds=None if silent_s is None else round(silent_s, 2),
            moved_to=self.host if self.lost else None,
        )
        if self.lost and before == self.node_names[0]:
            board.history.warn(
                f"the batch script and its keeper ended with {before}: an agent or a leader that dies from now on is not started again"
            )
        self._first_round, self._checked = past.restore(board, told)
        for node in board.nodes.all:
            node.bad = "SLURM has removed it from the job" if node.name in self.lost else node.bad
        board.regathers = self._first_round > 0 or left.get("phase") == HOLDING

    async def _patiently(self, work: Callable[[], _T]) -> _T:
        """Return what ``work`` returns, in a thread; retry while the run's folder does not answer. Raises RunDirError."""
        say = lambda error: print(f"{error}; retrying", file=sys.stderr, flush=True)  # noqa: E731
        try:
            return await until_answered(self.blocking, work, self.paths.root, refused=say)
        except OSError as error:
            text = unanswered(self.paths.root, error)
            await self.blocking(lambda: self.allocation.remark(text))  # the agent's log may be on the same file system
            raise RunDirError(text) from error

    async def _lead(self) -> Ending:
        board = self._board
        # What earlier attempts have left, and what was copied with the code, is no progress of this one. Not before the leader listens:
        # a look at very many files takes longer than its agents wait for it.
        if pattern := self.spec.checkpoint.watch:
            await self.blocking(lambda: newest_of(self.paths.root, pattern, board.own_files))
        if board.moved and self.spec.replace:  # those that wait in the queue look for the leader on the lost host
            await self.blocking(lambda: self.allocation.withdraw_nodes(pending=True))
        evidence = await self._gather()
        if evidence is None and board.claim.leader:
            await self._signals.learn()
            evidence = board.interrupted or await self._succession()
        if evidence is None and self.spec.after:
            held = await await_predecessors(board)
            if isinstance(held, str):
                return await self._end(Decision(Action.CANCEL, held, -1), Evidence(Kind.CANCELLED, held))
            evidence = held
        if evidence is None and self.spec.work.kind in ("script", "module") and "mlflow" in self.spec.trackers:
            await board.tracking.known(_TRACKER_S)
        number = self._first_round
        while True:
            if evidence is None:
                if self._hold is not None:
                    evidence = await self._hold.keep()
                else:
                    evidence = await as_gone(board, await drive_round(board, number))
                replacements.have_left(board)
                await await_revived(board, evidence)
                number += 1
            if evidence.kind is Kind.UNKNOWN_SIGNAL:
                evidence = await self._signals.ask_why_again(evidence)
            evidence = end_of_hold(evidence) if self._hold is not None else evidence
            decision = await self._decide(evidence)
            if decision.action is not Action.NEW_ROUND:
                break
            if evidence.refusals:
                await board.until(lambda now: board.interrupted, timeout_s=_REFUSED_AGAIN_S)
            evidence = None
        return await self._end(decision, evidence)

    async def _succession(self) -> Evidence:
        """Return the evidence that the leader whose place this one has taken is gone."""
        if self.lost:
            said = f"The leader's host was lost, and {self.host} leads now"
            return Evidence(Kind.LEADER_GONE, said, said=said)
        how = await self.blocking(self.allocation.leader_end)
        died = f"the leader on {self.host} died and was started again"
        return Evidence(Kind.LEADER_GONE, f"{how}: {died}" if how else died, said=how)

    async def _end(self, decision: Decision, evidence: Evidence) -> Ending:
        board = self._board
        if self._hold is not None:
            self._hold.refuse(f"{self.spec.id} has ended: {decision.reason}")
        board.phase = "ended"
        if decision.action is Action.REQUEUE:
            return await give_back(board, decision, evidence)
        return await leave(board, decision, evidence)

    async def _gather(self) -> Evidence | None:
        """Wait for the nodes and check them; a signal that turns out to mean nothing does not end that."""
        board = self._board
        while True:
            evidence = await await_nodes(board)
            if evidence is None and self.spec.preflight and not self._checked:
                evidence = await preflight(board)
            if evidence is not None and evidence.kind is Kind.UNKNOWN_SIGNAL:
                evidence = await self._signals.ask_why_again(evidence)
            if evidence is None or evidence.kind is not Kind.FALSE_ALARM:
                return evidence

    async def _decide(self, evidence: Evidence) -> Decision:
        board = self._board
        if await board.blocking(lambda: claims.is_over(self.paths, board.claim)):  # this leader may have stood still
            evidence = OVER
        decision = decide(evidence, self._situation(evidence))
        if decision.action is Action.REQUEUE and await board.blocking(
            lambda: is_requested(self.paths) or board.allocation.cancelled()
        ):
            # `launcher cancel` or scancel came after, or instead of, what was heard: requeueing would resurrect the job.
            board.cancelled = True
            decision = decide(evidence, self._situation(evidence))
        if decision.action is not Action.LEAVE:
            board.history.event(
                "decision",
                evidence=evidence.kind.value,
                action=decision.action.value,
                reason=decision.reason,
                row=decision.row,
                **({"said": evidence.said} if evidence.said else {}),
            )
        return decision

    def _situation(self, evidence: Evidence) -> Situation:
        board, spec, budgets = self._board, self.spec, self._board.budgets
        round_, stop = board.round, board.stop
        hours = budgets.spent_with_current_s(clock.now()) / 3600
        # A run that is never to be restarted after a failure may still be preempted before its first checkpoint.
        most = max(1, spec.restart.max_restarts) if evidence.kind in TAKEN_AWAY else spec.restart.max_restarts
        return Situation(
            nodes_left=len(board.nodes.healthy) >= board.needed_nodes,
            may_requeue=board.allocation.requeues and spec.restart.requeue,
            restarts_left=budgets.restarts[evidence.kind.value] < spec.restart.max_restarts,
            attempts_left=budgets.idle_attempts <= most,
            hours_left=hours < spec.restart.max_total_hours,
            cancelled=board.cancelled,
            attended=spec.held_by is not None and spec.restart.max_restarts == 0,
            shrunk=round_ is not None and len(round_.nodes) < spec.nodes,
            trained=budgets.rounds > 0,
            finished=round_ is not None
            # every rank has done all its work: also those that had ended before the stop, which were not asked
            and (round_.all_finished or (stop is not None and stop.all_done(round_.world_size)))
            and last_is_saved(board, round_),
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
