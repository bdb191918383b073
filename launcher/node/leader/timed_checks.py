"""Checks ten times a second what depends on time alone: silent nodes, hangs, saves that are due, state.json."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any

from launcher.node.checkpoints import claims
from launcher.node.leader import replacements, revivals
from launcher.node.leader.board import Board, caused
from launcher.node.leader.lost_folder import evidence_of
from launcher.node.leader.nodes import Node
from launcher.node.leader.picture import each_rank, picture, picture_every_s, sample_every_s
from launcher.node.leader.queue_early import queue_early
from launcher.node.leader.rounds import Rank, Round
from launcher.node.leader.saving import HOPELESS
from launcher.node.policy.budgets import PLAIN_SCRIPT_PROGRESS_S
from launcher.node.policy.decisions import Evidence, Kind
from launcher.node.policy.hangs import FROZEN_S, laggards
from launcher.node.wire.messages import SILENCE_S
from launcher.run import clock
from launcher.run.asking import PATIENCE_S
from launcher.run.intervals import mttf_s
from launcher.run.messages import AskUnit

_STALL_S = 2.0
"""After a longer gap between two ticks the leader itself stood still."""
_QUIET_NODE_S = 2.5
"""A node that has sent nothing for so long has missed two heartbeats."""
_ANSWER_S = 1.0
"""A worker's control thread answers at once, also while its main thread waits in a collective; not while it holds the
interpreter in native code."""
_CLAIM_S, _WATCH_S, _STARTS_S, _REPLACE_S = 2.0, 5.0, 1.0, 10.0
_IDLE_S = 1.0
"""What each rank of a script uses is looked at so often: 5 ms of the event loop for 16,000."""
_HOURS_STOP_S = 600.0
"""Workers get so long for the last save; those that do not stop by then are killed."""
_IDLE_STOP_S = 120.0
_BUSY_PHASES = frozenset({"save", "load", "evaluate", "teardown", "starting", "init"})
"""Starting has a limit of its own, ``init_timeout_min``."""
_OPEN_PHASES = frozenset({"between", "script"})
"""What is the user's own: only its use of GPUs and CPUs tells whether it works."""
_BUSY_PERCENT = 10.0
"""A GPU, or a worker's CPU, used less than this is idle: an interpreter that waits uses 1 % of a CPU."""


class TimedChecks:
    """Checks the board at every tick."""

    def __init__(self, board: Board, lose: Callable[[Node, str], None]) -> None:
        self.board = board
        self._lose = lose
        self._last = board.now()
        self._done: dict[str, float] = {}
        self._advanced_at, self._advanced_to = board.now(), -1
        self._refused: str | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._unasked: str | None = None
        """Why it is not known whether there is a newer claim."""
        self._gone_since: float | None = None

    async def tick(self) -> None:
        """Check everything once."""
        board, now = self.board, self.board.now()
        self._own_stall(now)
        if silent := board.nodes.silent(now):
            why = "cut_off" if board.nodes.is_alone(board.host, now) else "silent"
            for node in silent:
                self._lose(node, why)
        if board.keeper is not None and now - board.keeper.heard > SILENCE_S:
            revivals.keeper_stands_still(board)
        revivals.miss_keeper(board, now)
        round_ = board.round
        if round_ is not None and not round_.ending and board.phase == "training":
            self._round(round_, now)
            if board.spec.replace and self._is_due("replace", _REPLACE_S, now):
                self._beside("replace", lambda: replacements.ask_for_missing(board))
            if board.spec.restart.queue_early and self._is_due("queue early", math.inf, now):
                self._beside("queue early", lambda: queue_early(board))
            if self._is_due("watch", _WATCH_S, now):
                self._beside("watch", self._watch)
        # After a leader's death srun's messages tell of agents that have long been started again.
        if (
            board.phase == "waiting"
            and not board.regathers
            and board.nodes.missing
            and self._is_due("starts", _STARTS_S, now)
        ):
            self._beside("starts", self._starts)
        self._hours()
        if board.phase != "ended":
            if self._is_due("claim", _CLAIM_S, now):
                self._beside("claim", self._look_for_newer_claim)
            pictured = board.round
            ranks = pictured.ranks if pictured is not None else []
            if self._is_due("picture", picture_every_s(len(ranks)), now):
                told = await each_rank(ranks, lambda rank: rank.picture(now))
                board.history.state(picture(board, told if board.round is pictured else None))
                refused = board.history.refused
                if refused and refused != self._refused:
                    board.history.warn(f"the history cannot be written: {refused}; retrying")
                self._refused = refused
            if (round_ := board.round) is not None:
                held_s = board.budgets.spent_with_current_s(clock.now())
                every_s = sample_every_s(round_.world_size, held_s, now - round_.began)
                if self._is_due("samples", every_s, now):
                    board.history.samples(await each_rank(round_.ranks, Rank.sample))

    def _beside(self, what: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do it in a task of its own, one at a time: a folder or SLURM may take a minute to answer, and nodes may fall silent meanwhile."""
        last = self._tasks.get(what)
        if last is None or last.done():
            self._tasks[what] = asyncio.get_running_loop().create_task(work())
            if last is not None:
                last.result()  # raises what it raised: the tick tells of it

    async def _watch(self) -> None:
        if await self.board.look_at_own_files():
            self._advanced_at = self.board.now()

    async def _look_for_newer_claim(self) -> None:
        """Stop when there is a newer claim. While that is not known, training continues: each commit asks again."""
        board = self.board
        try:
            if not await board.blocking(lambda: claims.is_current(board.paths, board.claim)):
                board.fenced = True
            self._unasked = self._gone_since = None
        except OSError as error:
            if self._unasked is None:
                board.history.warn(f"the run's folder does not answer ({error}); training continues, retrying")
            self._unasked = str(error)
            await self._folder()

    async def _folder(self) -> None:
        """End the run when its folder stays deleted or moved for as long as a mount may be away."""
        board, gone = self.board, await self.board.blocking(self.board.anchor.look)
        if gone is None:
            self._gone_since = None
            return
        if self._gone_since is None:
            self._gone_since = board.now()
            board.history.warn(f"{gone.text}; the run ends in {PATIENCE_S / 60:g} minutes unless it is put back")
        if board.at_risk is None and board.now() - self._gone_since >= PATIENCE_S:
            board.at_risk = evidence_of(gone)

    def _is_due(self, what: str, every_s: float, now: float) -> bool:
        """Return whether ``what`` was last done ``every_s`` ago, or never."""
        if now - self._done.get(what, -math.inf) < every_s:
            return False
        self._done[what] = now
        return True

    def _own_stall(self, now: float) -> None:
        gap = now - self._last
        self._last = now
        if gap <= _STALL_S:
            return
        if gap > SILENCE_S:
            self.board.woke_at = now
        self.board.nodes.forgive(gap)
        if self.board.keeper is not None:
            self.board.keeper.heard += gap
        if self.board.round is not None:
            self.board.round.hangs.forgive(gap)
        self._advanced_at += gap

    async def _starts(self) -> None:
        """Wait no more for nodes whose agents have ended before they joined."""
        board = self.board
        ended = await board.blocking(board.allocation.ended_tasks)
        if board.interrupt is not None or board.phase != "waiting":
            return  # agents that leave because of a signal say nothing against their hosts
        checks = []
        # The agent of the leader's node runs in this process: srun's message about it is about a leader that died.
        for node in board.nodes.missing:
            if node.name != board.host and node.lost_at is None and (how := ended.get(node.name)) is not None:
                node.bad = f"its agent ended before it had joined ({how})"
                checks.append({"host": node.host, "name": "start", "ok": False, "detail": node.bad})
        if checks:
            board.history.event("preflight", ok=False, seconds=0.0, checks=checks, bandwidth_gb_s=None)

    def _hours(self) -> None:
        """Stop the run at the limit of hours over all attempts, also at the start of an attempt beyond it."""
        board, hours = self.board, self.board.spec.restart.max_total_hours
        if board.phase == "ended" or board.interrupt is not None:
            return
        if board.budgets.spent_with_current_s(clock.now()) >= hours * 3600:
            text = f"the allocations of all attempts have lasted {hours:g} hours (restart.max_total_hours)"
            board.stop_wanted(Kind.HOURS, text, _HOURS_STOP_S)

    # --- a round ---

    def _round(self, round_: Round, now: float) -> None:
        board = self.board
        board.fenced = board.fenced or board.saver.fenced
        self._hang(round_, now)
        self._pause(round_, now)
        if board.spec.restart.idle_timeout_min > 0 and self._is_due("idle", _IDLE_S, now):
            self._idle(round_, now)
        self._disk(now)
        self._not_finite(round_, now)
        plain = round_.plain and not board.spec.checkpoint.watch  # files of its own tell better
        old_enough = plain and now - round_.began > PLAIN_SCRIPT_PROGRESS_S
        if old_enough and self._is_due(f"round {round_.number}", math.inf, now):
            board.history.event("progress_assumed", seconds=PLAIN_SCRIPT_PROGRESS_S)
        if board.interrupt is None and round_.failed_at is None and not round_.lost and round_.all_ready:
            spent = board.budgets.spent_with_current_s(clock.now())
            board.saver.tick(now, mttf_s(board.spec.nodes, spent, board.failures))

    def _hang(self, round_: Round, now: float) -> None:
        board = self.board
        if not board.spec.restart.hang_detection or board.hang or round_.failed_at is not None or round_.lost:
            return
        if board.stop is not None:
            return  # held at a boundary; the stop has a deadline of its own
        if any(now - node.heard > _QUIET_NODE_S for node in round_.nodes):
            return  # a node may be dying: its silence, not the ranks that wait for it, is what will be acted on
        limit = round_.hung(now)
        views = round_.views(now) if limit is not None else []
        if limit is None:
            round_.asked_at = None
            return
        frozen_s = min(FROZEN_S, limit / 2)  # a limit may be shorter; who was frozen for most of it is the reason
        frozen = {v.rank for v in views if v.frozen_s >= frozen_s}
        if not frozen and not round_.located(now, _ANSWER_S):
            return
        slow = [round_.ranks[v.rank] for v in laggards(views, frozen_s)]
        left = [] if slow else round_.left_unfinished()
        named = [
            {"rank": r.rank, "host": r.node.host, "step": r.step, "phase": r.phase, "frozen": r.rank in frozen}
            | ({"exit_code": 0} if left else {})
            for r in slow or left
        ]
        board.history.event("hang", limit_s=round(limit, 1), laggards=named)
        who = ", ".join(f"rank {r.rank} on {r.node.host}" for r in (slow or left)[:4])
        more = f"{who} lagged behind" if who else ""
        if left:
            more = f"{who} had exited with code 0 at step {left[0].step:,}"
        text = f"no rank progressed for {limit:.0f} s" + (f" ({more})" if more else "")
        if frozen & {r.rank for r in slow}:
            text = f"{who} {'was' if len(slow) == 1 else 'were'} frozen (process state T) for {limit:.0f} s"
        hosts = tuple(sorted({r.node.host for r in slow}))
        board.hang = caused(Kind.HANG, text, hosts, (slow or left)[0].rank if slow or left else None)

    def _pause(self, round_: Round, now: float) -> None:
        """Ask, once in a longer pause of training, which ranks are at work and which wait for them."""
        if not round_.stepped or not round_.pauses.may_begin(now, round_.hangs):
            return
        steady = self.board.stop is None and round_.failed_at is None and not round_.lost
        if steady and round_.tally.phases == {"train"}:
            round_.pauses.begin(now, round_.hangs, {r.rank for r in round_.ranks if not r.over})
            round_.send(AskUnit())

    def _idle(self, round_: Round, now: float) -> None:
        minutes = self.board.spec.restart.idle_timeout_min
        if round_.step != self._advanced_to or _occupied(round_):
            self._advanced_at, self._advanced_to = now, round_.step
        elif now - self._advanced_at > minutes * 60 and self.board.interrupt is None:
            self.board.stop_wanted(
                Kind.IDLE, f"no progress for {minutes:g} minutes (restart.idle_timeout_min)", _IDLE_STOP_S
            )

    def _not_finite(self, round_: Round, now: float) -> None:
        """Write which ranks had a NaN or an infinity first, and when all ranks are well again."""
        for change in round_.bad_metrics.changes(now):
            ranks = [{"rank": r, "host": round_.ranks[r].node.host} for r in change.ranks]
            said = {"step": change.step, "metric": change.metric, "value": change.value, "until": change.until}
            self.board.history.event("not_finite", ranks=ranks, **said)

    def _disk(self, now: float) -> None:
        board, saver, most = self.board, self.board.saver, self.board.spec.restart.max_at_risk_min
        if board.at_risk is not None:
            return
        if saver.at_risk_s(now) > most * 60:
            text = f"no checkpoint could be written for {most:g} minutes"
            board.at_risk = caused(Kind.DISK_AT_RISK, text)
            if self._unasked is not None:  # no full disk: it may come back, and on other nodes it may be there
                board.at_risk = Evidence(Kind.UNREADABLE, f"{text}: the run's folder does not answer ({self._unasked})")
        elif saver.permanent >= HOPELESS:
            board.at_risk = caused(Kind.CANNOT_SAVE, f"no checkpoint can be written: {saver.last_error}")


def _occupied(round_: Round) -> bool:
    """Return whether ranks start, load, save or evaluate; before the first step and between steps also whether they use GPUs or CPUs."""
    phases = round_.tally.phases
    if phases & _BUSY_PHASES:
        return True
    if round_.stepped and not phases & _OPEN_PHASES:
        return False
    uses = [r.use for r in round_.ranks if r.use is not None and not r.over]
    used = [percent for use in uses for percent in (use.gpu_percent, use.cpu_percent)]
    return any(percent is not None and percent >= _BUSY_PERCENT for percent in used)
