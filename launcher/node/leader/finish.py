"""Ends an attempt: the run is over, or SLURM starts it again. The leader leaves last."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from launcher.errors import RunCancelledError, RunFailedError, SiteError
from launcher.frozen import frozen
from launcher.node.allocation.allocation import NEEDED, CancelledError, HandedBack, NotAnsweredError
from launcher.node.checkpoints import claims, trash
from launcher.node.leader.board import Board
from launcher.node.leader.lost_folder import follow_folder, tell_outside
from launcher.node.leader.nodes import Node
from launcher.node.leader.picture import picture
from launcher.node.policy.budgets import backoff_s
from launcher.node.policy.decisions import MEMORY, Action, Decision, Evidence, Kind
from launcher.node.wire.messages import Shutdown
from launcher.run import clock
from launcher.run.asking import PATIENCE_S
from launcher.run.batch import GONE
from launcher.run.state import forget_passed, write_outcome

_STATES = {Action.COMPLETE: ("completed", 0), Action.FAIL: ("failed", RunFailedError.exit_code),
           Action.CANCEL: ("cancelled", RunCancelledError.exit_code)}  # fmt: skip
_EXCLUDED = (Kind.NODE_LOST, Kind.PREFLIGHT, Kind.NODES_MISSING, Kind.PORTS_TAKEN)
_NOTIFY_S = 8.0
"""At the end of a run the allocation is held at most this long, while notifications and metrics are delivered."""
_DELETE_S = 120.0
"""At the end of a run the allocation is held at most this long, while old checkpoints are deleted: nobody else would."""
_KILLED_SOON_S = 2.0
"""The same after a cancel, when SLURM is about to kill."""
_LEFT_OVER_S = 1.0
"""The same before a requeue: the next attempt delivers the rest."""
_UNHEARD_S = 120.0
_WAKING_S = 5.0
_WRITE_TRIES, _WRITE_PAUSE_S = int(PATIENCE_S), 1.0


@frozen
class Ending:
    """How this attempt ended, for the process that runs the leader."""

    state: str
    """"completed", "failed", "cancelled" or "requeued" (the run goes on in another attempt)."""
    reason: str
    """One sentence."""
    exit_code: int
    """What the agent of the leader's node exits with."""
    stale: bool = False
    """Another leader, or a newer attempt, decides what becomes of the run."""


async def leave(board: Board, decision: Decision, evidence: Evidence) -> Ending:
    """End the run (or, when this attempt is stale, only leave)."""
    if decision.action is Action.LEAVE:
        return await _leave_to_newer(board, decision.reason)
    state, code = _STATES[decision.action]
    gone = await follow_folder(board)
    reason = _reason(board, decision, evidence)
    completed = decision.action is Action.COMPLETE
    await board.blocking(board.allocation.withdraw_early)
    if not completed:
        await board.blocking(board.allocation.forbid_requeue)
    step = max(board.saver.last_step or 0, _steps_done(board))
    _end_attempt(board, reason)
    board.history.event("ended", state=state, reason=reason, exit_code=code, step=step)
    board.history.state(picture(board))
    outcome = {"state": state, "reason": reason, "exit_code": code, "step": step, "t": clock.now(), "attempt": board.attempt,
               "metrics": dict(board.metrics), "cause": evidence.cause and evidence.cause.to_wire()}  # fmt: skip
    await board.blocking(board.history.flush)
    if await board.blocking(lambda: claims.is_over(board.paths, board.claim)):  # the flush may have taken long
        return await _leave_to_newer(board, "a newer attempt of this run has begun")
    await _write(board, outcome, 1 if gone is not None and gone.place is None else _WRITE_TRIES)
    if completed:  # only now: jobs that waited for this run may start, and look for its outcome
        await board.blocking(board.allocation.run_completed)
    if gone is not None:
        await board.blocking(lambda: tell_outside(board, gone, reason))
    # Only now: notifications read the run's files, and slow trackers must not delay the outcome.
    board.notifier.tell(state, reason)
    board.tracking.end(state, reason)
    limit_s = _KILLED_SOON_S if decision.action is Action.CANCEL else _NOTIFY_S
    soon = board.interrupt is not None and board.interrupt.deadline < math.inf
    await _close(board, limit_s, limit_s if soon else _DELETE_S)
    if not await board.blocking(lambda: claims.is_over(board.paths, board.claim)):  # a newer attempt may need them
        await board.blocking(lambda: forget_passed(board.paths))
    stays = _stays(board)
    await _dismiss(board)
    await board.blocking(board.allocation.withdraw_nodes)
    if stays:
        await board.blocking(board.allocation.end_step)
    return Ending(state, reason, GONE if evidence.kind is Kind.GONE else code)


async def _leave_to_newer(board: Board, reason: str) -> Ending:
    """Leave the run to another leader of this attempt, or to a newer attempt."""
    if await board.blocking(lambda: claims.was_taken_over(board.paths, board.claim)):
        for node in board.nodes.all:
            board.nodes.drop(node)  # it joins the leader that has taken this one's place
        board.keeper = None
    await _dismiss(board)
    return Ending("requeued", reason, 0, stale=True)


def _end_attempt(board: Board, why: str) -> None:
    board.history.event("attempt_ended", why=why, allocation_s=round(clock.now() - board.began_t, 1))


def _steps_done(board: Board) -> int:
    """The steps of the last round; of ranks that ended before their last report, as their checkpoint says."""
    return max(board.round.step, board.round.last_finished) if board.round is not None else 0


def _reason(board: Board, decision: Decision, evidence: Evidence) -> str:
    if board.spec.hold and evidence.kind is Kind.DONE:
        return f"{evidence.text[:1].upper()}{evidence.text[1:]}."
    if decision.action is Action.COMPLETE:
        step = _steps_done(board)
        return f"All {step} steps are done." if step else "The work is done."
    deleted = evidence.kind is Kind.GONE and not (evidence.cause and evidence.cause.place)
    if deleted or board.saver.last_step is None:
        return decision.reason
    return f"{decision.reason} The newest checkpoint is of step {board.saver.last_step:,}."


async def _write(board: Board, outcome: dict[str, Any], tries: int) -> None:
    """Write the outcome; retry on a full disk, since without it the batch script would start the run again."""
    for attempt in range(tries):
        try:
            await board.blocking(lambda: write_outcome(board.paths.outcome, outcome))
            return
        except OSError:
            if attempt + 1 == tries:
                return
            await asyncio.sleep(_WRITE_PAUSE_S)


async def give_back(board: Board, decision: Decision, evidence: Evidence) -> Ending:
    """Give the allocation back and have SLURM start the run again."""
    bad = _bad_hosts(board, evidence)
    delay = backoff_s(board.budgets.poor_attempts)
    began = clock.now()
    stays = _stays(board)
    _send_away(board)  # after these two, which would count those that leave now as lost
    if evidence.kind in (Kind.PREEMPTED, Kind.PREEMPTED_NOW):
        board.notifier.tell("preempted", decision.reason)
    silent = tuple(n.name for n in _lost(board) if n.lost_why != "closed" and not n.here and n.job is None)
    gone = await board.blocking(lambda: board.allocation.let_go(silent)) if silent else ()
    spec = board.spec
    is_short = evidence.cause is not None and evidence.cause.kind in MEMORY and spec.needed_nodes < spec.nodes
    nodes = (spec.nodes, spec.all_nodes) if is_short else None  # memory ran out on fewer
    try:
        early = spec.restart.queue_early and evidence.kind is Kind.TIME_LIMIT
        handed = await _hand_back(board, tuple(bad), delay, early, nodes)
    except NotAnsweredError as error:
        return await _unheard(board, decision, error)
    except CancelledError as error:
        cancelled = Decision(Action.CANCEL, f"{decision.reason} But {error}.", decision.row)
        return await leave(board, cancelled, evidence)
    except SiteError as error:
        failed = Decision(Action.FAIL, f"{decision.reason} SLURM did not take the run back: {error}", decision.row)
        return await leave(board, failed, evidence)
    lost = await board.blocking(board.anchor.look)
    if lost is not None:  # SLURM can start the job only if it is put back before
        await board.blocking(lambda: board.allocation.remark(f"{decision.reason} But {lost.text}."))
    for why in dict.fromkeys(bad.values()):
        board.history.event("excluded", hosts=[h for h in bad if bad[h] == why], why=why)
    if handed.given_up:
        board.history.event("readmitted", hosts=list(handed.given_up), why=NEEDED)
    _end_attempt(board, decision.reason)
    took = round(clock.now() - began, 2)
    board.history.event(
        "requeued",
        how=handed.how,
        job_id=handed.job_id,
        seconds=took,
        delay_s=delay,
        let_go=list(gone),
        nodes=nodes and list(nodes),
    )
    board.history.state(picture(board))
    await board.blocking(board.history.flush)
    board.tracking.end("requeued", decision.reason)
    await _dismiss(board)
    await board.blocking(board.allocation.withdraw_nodes)
    await _close(board, _LEFT_OVER_S, _LEFT_OVER_S)
    if handed.how == "continuation" and stays:  # it waits for the end of this job, which no requeue ends
        await board.blocking(board.allocation.end_step)
    elif handed.how != "continuation" and delay == 0:
        # If the last process ends after StartTime, SLURM sets the full delay again: this is the leader's last act.
        await board.blocking(board.allocation.pull_forward)
    return Ending("requeued", decision.reason, 0)


async def _hand_back(
    board: Board, exclude: tuple[str, ...], delay_s: float, early: bool, nodes: tuple[int, int] | None
) -> HandedBack:
    """Hand the allocation back; retry while SLURM does not answer, since slurmctld may be restarting. Raises SiteError."""
    end = board.now() + _UNHEARD_S
    while True:
        try:
            return await board.blocking(
                lambda: board.allocation.hand_back(exclude=exclude, delay_s=delay_s, early=early, nodes=nodes)
            )
        except NotAnsweredError:
            if board.now() >= end or await board.blocking(lambda: claims.is_over(board.paths, board.claim)):
                raise
            await asyncio.sleep(2.0)


async def _unheard(board: Board, decision: Decision, error: SiteError) -> Ending:
    """End without an outcome: SLURM does not answer, so this host may be cut off and the run may continue elsewhere."""
    text = f"{decision.reason} SLURM does not answer ({error}), so it is not known whether the run continues."
    board.history.warn(text)
    _end_attempt(board, text)
    await _dismiss(board)
    await board.blocking(board.history.close)
    return Ending("requeued", text, SiteError.exit_code)


def _bad_hosts(board: Board, evidence: Evidence) -> dict[str, str]:
    """Return the hosts to exclude from the next attempt, with reasons: those blamed, failed or lost in this one."""
    woke = board.woke_at
    # Agents leave a leader that stands still; it learns of that when it runs again. One that is cut off loses all.
    gone = [n for n in board.nodes.all if n.lost_at is not None]
    left = {n.name for n in gone if n.lost_why == "cut_off" or (woke and abs((n.lost_at or 0.0) - woke) < _WAKING_S)}
    named = [n for n in board.nodes.all if n.name]  # without a name: its job never came so far
    lost = {
        n.name: "it stopped responding" if n.lost_why == "silent" else "its connection closed"
        for n in _lost(board)
        if n.name not in left
    }
    bad = {n.name: why for n in named if (why := n.bad or n.suspect) is not None}
    blamed = [host for host in evidence.hosts if host and host not in left] if evidence.kind in _EXCLUDED else []
    return {**lost, **bad, **dict.fromkeys(blamed, evidence.text)}


def _lost(board: Board) -> list[Node]:
    """Return the nodes that were lost before SLURM took the allocation away; those lost during that are not to blame."""
    until_t = board.interrupt.began if board.interrupt is not None else board.now()
    lost = [n for n in board.nodes.all if n.lost_at is not None and n.lost_at < until_t]
    return [n for n in lost if n.job is None or not n.leaves]


def _stays(board: Board) -> bool:
    """Whether srun, which waits for every task, may wait to the time limit: for a node that never joined and hangs in its setup lines, or
    for an agent that was lost and cannot end.

    A leader that has moved would end with its step before it could end the job.
    """
    mine = [n for n in board.nodes.all if n.job is None and not n.here]
    return not board.moved and any(n.bad is None or n.lost_at is not None for n in mine)


async def _close(board: Board, limit_s: float, delete_s: float) -> None:
    """Deliver and delete what is left, for so long each, and write the rest of the history."""
    deleting = asyncio.ensure_future(board.blocking(lambda: trash.empty(board.paths)))
    await asyncio.gather(
        board.notifier.drain(limit_s),
        board.tracking.drain(limit_s),
        asyncio.wait({deleting}, timeout=delete_s),
    )
    await board.blocking(board.history.close)


async def _dismiss(board: Board) -> None:
    """Send every agent away and wait until they have gone."""
    _send_away(board)
    await board.until(lambda now: not any(n.here for n in board.nodes.all) or None, timeout_s=board.timing.leave_s)


def _send_away(board: Board) -> None:
    for node in board.nodes.all:
        node.send(Shutdown())
    if board.keeper is not None:
        board.keeper.link.send(Shutdown())
