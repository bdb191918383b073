"""Saves while training goes on: when to ask for a checkpoint, collecting its shards, committing it, retrying on a full disk.

Saves every ``interval_steps`` are begun by the workers themselves (both sides compute the steps); saves by time are
asked for at a step that no worker has entered yet, acknowledged by every worker, and tried again further ahead when one
was there already. The leader commits a save when the shards of all ranks are there.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import statistics
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from launcher.node.checkpoints import claims, committed, trash
from launcher.node.checkpoints.committed import CommittedCheckpoint, Shard
from launcher.node.leader.folder_retries import Blocking, until_answered
from launcher.node.leader.journal import HistoryWriter
from launcher.node.leader.rounds import Round
from launcher.node.leader.save_progress import PENDING_S, Asked, Save
from launcher.node.leader.verify import Proof
from launcher.node.wire.messages import HEARTBEAT_S, RankShard, ShardsWritten
from launcher.run.intervals import young_daly_s
from launcher.run.messages import SaveAgreed, SaveAt, SaveLost, WorkerSaveAck, WorkerSaveFailed
from launcher.run.paths import RunPaths
from launcher.run.spec import CheckpointSpec

_AHEAD_S = 0.3 + HEARTBEAT_S
"""The step asked for lies so far ahead: a message reaches every worker in 0.3 s, and what is known of the ranks may be a heartbeat old."""
_ACK_S = 30.0
_CAUSE_S = 1.0
_RETRY_FIRST_S, _RETRY_MOST_S = 15.0, 300.0
_LOOK_S = 0.5
_FULL = (errno.ENOSPC, errno.EDQUOT)
"""The ranks' parts are written: a few kilobytes are missing, and room may come. The ranks try again, too."""
HOPELESS = 3
"""The round ends after so many saves in a row that failed for a lasting reason (the state itself, or permissions)."""


@dataclass
class Saver:
    """Saves of one attempt, round after round."""

    spec: CheckpointSpec
    paths: RunPaths
    history: HistoryWriter
    blocking: Blocking
    wake: Callable[[], None]
    round: Round = field(init=False)
    """The current one; unset before the first."""
    last_step: int | None = None
    """The newest checkpoint."""
    last_t: float | None = None
    """When it was committed in this attempt, by the leader's clock."""
    trusted: set[int] = field(default_factory=set)
    """Steps that this attempt has committed."""
    failures: int = 0
    """Saves in a row that failed."""
    failing_since: float = math.inf
    """When the first of these failed; of one that was stuck, when something was last heard of it."""
    fenced: bool = False
    last_error: str = ""
    permanent: int = 0
    """Saves in a row that failed for a reason that another try does not remove."""
    failed_steps: set[int] = field(default_factory=set)
    """Steps of which a part could not be written, or that could not be committed."""
    bad_since: int | None = None
    """The step from which on a metric is not finite: the first, where several rounds have told of it."""
    proof: Proof | None = None
    """Of the checkpoint that the round resumed from, where that is large."""
    _saves: dict[int, Save] = field(default_factory=dict)
    _lost: set[int] = field(default_factory=set)
    _asked: Asked | None = None
    _ids: int = 0
    _margin: int = 1
    _last_begun: float = 0.0
    _retry_at: float = math.inf
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _deletions: set[asyncio.Task[None]] = field(default_factory=set)
    """Of old checkpoints and lost saves: terabytes on a slow file system take minutes, for which no requeue can wait."""
    _removing: set[int] = field(default_factory=set)
    """Steps of lost saves whose folders are about to go, with what a rank writes there meanwhile."""
    _costs: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    """Seconds for which each of the latest saves paused training."""
    _hurry: Callable[[], bool] = lambda: False

    # --- rounds ---

    def begin_round(self, round_: Round, now: float) -> None:
        """Begin a new round; unfinished saves of the old one are dropped."""
        self.round = round_
        resumed = round_.resume
        if resumed is None or resumed.step < (self.bad_since or 0):
            self.bad_since = None
        self.proof = Proof(resumed, self.blocking, self.wake) if resumed is not None and resumed.unread else None
        self._saves.clear()
        self._lost.clear()
        self.failed_steps.clear()
        self._asked = None
        self._hurry = lambda: False
        self._last_begun = now
        self._retry_at = now if self.failures else math.inf

    async def quiesce(self, hurry: Callable[[], bool], late: Callable[[], bool] = lambda: False) -> None:
        """Wait until every complete save is committed (or has failed); read no further what the round resumed from.

        In a ``hurry`` a folder that does not answer is not waited for; once it is ``late`` no proof is, and the saves that
        wait for it are given up.
        """
        self._hurry = hurry
        while waited := [*self._tasks, *(() if hurry() else self._deletions)]:
            if late() and self.proof is not None:
                self.proof.stop()
            await asyncio.wait(waited, timeout=_LOOK_S)
        if self.proof is not None:
            await self.proof.halt()

    # --- what workers say ---

    def metrics_heard(self) -> None:
        """Note since which step a metric of the round is not finite."""
        since = self.round.bad_metrics.since
        self.bad_since = since and min(since, self.bad_since or since)

    def save_begun(self, step: int, now: float) -> None:
        """Note that a worker has begun to save ``step``."""
        if not self.is_committed(step) and step not in self._removing:
            self._lost.discard(step)  # a worker tries its last save again
            self._get(step, now).heard = now

    def shard(self, shard: RankShard, message: ShardsWritten, now: float) -> None:
        """Take in a rank's durable part, of a message; the last one makes the checkpoint."""
        rank, step = shard.rank, message.step
        if step in self._lost or step in self.trusted:  # an interval may be the end, too: the first save of it counts
            return
        save = self._get(step, now)
        save.heard = now
        save.shards[rank] = Shard(rank, shard.files, message.hash_name, shard.meta or None)
        save.seconds = max(save.seconds, message.seconds)
        save.blocked_s = max(save.blocked_s, message.blocked_s)
        if len(save.shards) == self.round.world_size and not save.committing:
            save.committing = True
            self._begin_task(self._tasks, self._commit(save, self.round))

    def save_failed(self, message: WorkerSaveFailed, now: float) -> None:
        """Give up a save of which a rank could not write its part: nobody's part is kept, training goes on."""
        step, number = message.step, message.errno
        if step in self._lost:
            return
        save = self._get(step, now)

        def lose() -> None:
            if number != errno.ENOENT or (self._saves.get(step) is save and not save.failed):
                self.permanent = self.permanent + 1 if message.permanent else 0
                self._lose(save, message.error or "unknown error", number, now, keep=message.last)

        # No folder: another rank, whose own failure is told or about to be, has taken it away.
        asyncio.get_running_loop().call_later(_CAUSE_S, lose) if number == errno.ENOENT else lose()

    def save_ack(self, rank: int, message: WorkerSaveAck, now: float) -> None:
        """Take in a worker's answer whether it will save at the step asked for."""
        asked = self._asked
        if asked is None or message.id != asked.id:
            return
        asked.acks.add(rank)
        asked.refused = asked.refused or not message.ok
        if len(asked.acks) < self.round.world_size:
            return
        self._asked = None
        if asked.refused:
            self.give_up(asked.step)
            self._margin = min(self._margin * 2, 4096)
            self._ask(now)
        else:
            self._margin = max(1, self._margin - 1)
            self._get(asked.step, now)
            self.round.send(SaveAgreed(step=asked.step))

    def finished(self, step: int) -> None:
        """Give up saves beyond ``step``: a worker has done all its work there."""
        if self._asked is not None and self._asked.step > step:
            self.give_up(self._asked.step)
            self._asked = None
        for later in [s for s, save in self._saves.items() if s > step and not save.committing]:
            self.give_up(later)

    def label_stop(self, step: int, now: float) -> None:
        """Note that the save of ``step`` is the one of a stop."""
        if not self.is_committed(step) and step not in self._lost:
            self._get(step, now).reason = "stop"

    # --- what the leader asks ---

    def is_committed(self, step: int) -> bool:
        """Return whether the checkpoint of ``step`` is committed, by this attempt or as the one resumed from."""
        resumed = self.round.resume
        return step in self.trusted or (resumed is not None and resumed.step == step)

    def is_committing(self, step: int) -> bool:
        """Return whether all shards of ``step`` have come and its commit is under way."""
        save = self._saves.get(step)
        return save is not None and save.committing

    def is_open(self, step: int) -> bool:
        """Return whether a rank has begun to save ``step`` and not every part has come."""
        save = self._saves.get(step)
        return save is not None and bool(save.heard) and not save.committing

    def _interval_s(self, mttf_s: float) -> float:
        """Return seconds between saves by time; infinite where the workers save by steps."""
        if self.spec.interval_steps is not None:
            return math.inf
        if self.spec.interval_min is not None:
            return self.spec.interval_min * 60
        low, high = self.spec.min_interval_min * 60, self.spec.max_interval_min * 60
        if not self._costs:
            return low  # the first save measures
        return min(high, max(low, young_daly_s(max(statistics.fmean(self._costs), 0.001), mttf_s)))

    def at_risk_s(self, now: float) -> float:
        """Return for how many seconds of this round no save has worked, failing or stuck; 0 while saving works.

        The time before the first failure does not count: saves may be far apart, and the next one may work.
        """
        since = min((save.heard for save in self._saves.values() if save.is_stuck(now)), default=math.inf)
        return max(0.0, now - max(min(since, self.failing_since), self.round.began))

    def tick(self, now: float, mttf_s: float) -> None:
        """Ask for a save when one is due. Call it while the round trains and nothing stops it."""
        if self._asked is not None:
            if now - self._asked.at > _ACK_S:
                self.give_up(self._asked.step)
                self._asked = None
            return
        for save in [s for s in self._saves.values() if s.is_late(now)]:
            if not save.heard:
                self.history.warn(f"no rank has saved step {save.step:,}; the leader gave that save up")
                self.give_up(save.step)
            elif self.round.script:
                minutes = f"{PENDING_S / 60:.0f} minutes"
                self.failing_since = min(self.failing_since, save.heard)
                self._lose(save, f"nothing was heard of it for {minutes}, and not every rank has saved", None, now)
        if not self.spec.enabled or self._saves or self._removing:  # one in flight
            return
        if now < self._retry_at and now - self._last_begun < self._interval_s(mttf_s):
            return
        first, tally = self.round.first, self.round.tally
        if not tally["plain"] and not tally["over"] and all(rank.step > first for rank in self.round.ranks):
            self._retry_at = math.inf
            self._ask(now)

    def _ask(self, now: float) -> None:
        ranks = self.round.ranks
        if self.round.tally["over"]:
            return
        step_time = max(k.step_time_s or 0.0 for k in ranks)
        ahead = math.ceil(_AHEAD_S / step_time) if step_time > 0 else 10
        step = max(self.round.step, max(k.entered or 0 for k in ranks)) + 1 + min(ahead, 1000) * self._margin
        self._last_begun = now
        if self.round.is_done(step):
            return  # the last save comes by itself, into the same folder
        self._ids += 1
        self._asked = Asked(self._ids, step, now)
        self._lost.discard(step)
        self.round.send(SaveAt(id=self._ids, step=step))

    # --- inside ---

    def _get(self, step: int, now: float) -> Save:
        save = self._saves.get(step)
        if save is None:
            save = self._saves[step] = Save(step, now)
            self._last_begun = now
            self.history.event("save_started", step=step)
        return save

    def give_up(self, step: int) -> None:
        """Give up this save: what is written of it is removed."""
        self._lost.add(step)
        if self._saves.pop(step, None) is None:  # no rank has begun
            self.round.send(SaveLost(step=step))
            return
        self._removing.add(step)
        self._begin_task(self._deletions, self._remove(step, self.round))

    async def _remove(self, step: int, round_: Round) -> None:
        tmp = self.paths.checkpoint_tmp(self.history.claim.attempt, round_.number, step)
        try:
            await self.blocking(lambda: trash.move(tmp))
        finally:
            self._removing.discard(step)
        # Only now: the last save of all is then written anew, into a folder of that name.
        round_.send(SaveLost(step=step))
        trash.empty_in_thread(self.paths)

    def _lose(self, save: Save, error: str, number: int | None, now: float, *, keep: bool = False) -> None:
        """Note a failed save; ``keep`` the others' parts: the rank that failed tries the last save again."""
        self.failures, save.failed = self.failures + 1, True
        self.failing_since = min(self.failing_since, now)
        self.failed_steps.add(save.step)
        self.last_error = error
        self.history.event("save_failed", step=save.step, error=error, errno_name=errno.errorcode.get(number or 0))
        if not keep:
            self.give_up(save.step)
        self._retry_at = now + min(_RETRY_MOST_S, _RETRY_FIRST_S * 2.0 ** min(self.failures - 1, 6))
        self.wake()

    async def _commit(self, save: Save, round_: Round) -> None:
        now = asyncio.get_running_loop().time
        claim = self.history.claim
        if self.proof is not None and not await self.proof.good():
            self.give_up(save.step)
            return
        if self._saves.get(save.step) is not save:
            return  # given up while it waited

        def work() -> CommittedCheckpoint:
            return committed.commit_checkpoint(
                self.paths,
                step=save.step,
                claim=claim,
                round_=round_.number,
                world_size=round_.world_size,
                shards=[save.shards[rank] for rank in sorted(save.shards)],
                reason=save.reason,
            )

        try:
            # The ranks have done their part: what is left is worth asking for again.
            done = await until_answered(
                self.blocking,
                work,
                self.paths.root,
                enough=lambda: self._hurry(),
                refused=self._refused,
                also=_FULL,
            )
        except OSError as error:
            self.fenced = self.fenced or isinstance(error, claims.StaleError)
            self._lose(save, str(error.strerror or error), error.errno, now())
            return
        except Exception as error:  # what a worker reported makes no checkpoint (a malformed shard): that save is lost
            self._lose(save, repr(error), None, now())
            return
        self._committed(save, done, now())
        self._begin_task(self._deletions, self._collect(done.step))

    def _refused(self, error: OSError) -> None:
        self.history.warn(f"a checkpoint cannot be committed ({error}); retrying")
        trash.empty_in_thread(self.paths)  # on a full disk that may be all it needs

    async def _collect(self, good: int) -> None:
        keep = self.spec
        with contextlib.suppress(OSError):  # the next save collects it
            await self.blocking(
                lambda: committed.collect_garbage(
                    self.paths,
                    claim=self.history.claim,
                    keep_last=keep.keep_last,
                    keep_every_steps=keep.keep_every_steps,
                    good=good,
                    before=[step for step in (self.bad_since, self.round.bad_metrics.since) if step is not None],
                )
            )
        trash.empty_in_thread(self.paths)

    def _begin_task(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _committed(self, save: Save, done: CommittedCheckpoint, now: float) -> None:
        self._saves.pop(save.step, None)
        overtaken = done.step < (self.last_step or 0)  # commits run side by side: the last that is told is the newest
        self.trusted.add(done.step)
        self.failed_steps.discard(done.step)
        self.failures, self.permanent, self.failing_since, self._retry_at = 0, 0, math.inf, math.inf
        self._costs.append(save.blocked_s or save.seconds)
        if not overtaken:
            self.last_step, self.last_t = done.step, now
            self.history.event(
                "saved",
                step=done.step,
                seconds=round(now - save.began, 4),
                write_s=round(save.seconds, 4),
                blocked_s=round(save.blocked_s, 4),
                bytes=done.bytes,
                path=str(done.path),
                reason=save.reason,
            )
        self.wake()
