"""What the leader knows of one round: its ranks, their failures, its progress."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from launcher.node.checkpoints.committed import CommittedCheckpoint
from launcher.node.leader.bad_metrics import BadMetrics
from launcher.node.leader.nodes import Node
from launcher.node.leader.pauses import Pauses
from launcher.node.leader.tally import Tally, Watched
from launcher.node.policy.first_failure import Failure, cause_of, left_behind, left_by_itself, symptom_only
from launcher.node.policy.hangs import HangWatch, RankView
from launcher.node.wire.messages import Alive, RankUse, ToAgent, ToWorkers, WorkerExit
from launcher.run import clock
from launcher.run.messages import AskUnit, ToWorker, WorkerAt, WorkerProgress

_FADES = 0.98
"""What is left of a step time with each newer one: the last fifty or so count."""
_USED = ("cpu_percent", "rss_bytes", "gpu_percent", "gpu_mem_bytes", "gpu_power_w", "gpu_memory_errors")
"""What samples tell of a rank."""
_SETTLE_S = 0.05
"""After a failure that is not a victim's, the leader waits so long for others."""
_SETTLE_SCRIPT_S = 1.0
"""SLURM's TERM may have ended a script: an agent will report the signal."""
_SETTLE_SYMPTOMS_S = 2.5
"""While only victims have failed, the leader waits for the rank that failed first. Its agent reads the end of its log before it tells
(at most for a second, `launcher.node.agent.workers`)."""
_SETTLE_EXITS_S = 5.0
"""While only scripts have failed that ended themselves, the leader waits for the others: it matters whether all do."""

_MISSED_S, _MISSED_LATE_S = 120.0, 3600.0
"""A rank that has left breaks the others' connections at their next collective; where they wait, torch gives up after half an hour."""


@dataclass(eq=False)
class Rank:
    """One worker. It equals itself alone."""

    round: Round
    rank: int
    node: Node
    local_rank: int
    phase: str = Watched("starting")  # type: ignore[assignment]
    phase_since: float = 0.0
    step: int = 0
    entered: int | None = None
    at: int | None = None
    """The unit it has entered, answered to ``where``."""
    collectives: int | None = None
    """How many collectives it had started then."""
    step_time_s: float | None = None
    own_s: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    """Its latest step times without what it waited for others."""
    recent_s: float = 0.0
    """Its latest step times, added up; older ones fade."""
    recent_data_s: float = 0.0
    """What it waited for data in them."""
    pid: int | None = None
    ready: bool = Watched(False)  # type: ignore[assignment]
    attached: bool = Watched(False)  # type: ignore[assignment]
    """It can be told to stop: a task, a function, or a script with `launcher.attach`."""
    finished: int | None = Watched(None)  # type: ignore[assignment]
    stopped: int | None = Watched(None)  # type: ignore[assignment]
    saved: bool = Watched(True)  # type: ignore[assignment]
    """What it said when it finished."""
    shard_step: int = 0
    """The step of its latest part of a checkpoint: its report of that step may come later, or never (os._exit)."""
    handles_usr2: bool = Watched(False)  # type: ignore[assignment]
    """A script with a handler of its own for USR2."""
    exited: bool = Watched(False)  # type: ignore[assignment]
    ended_t: float | None = None
    """When its process ended, seconds since the epoch."""
    leaving_t: float | None = None
    """When a script had ended with code 0; Python's own shutdown, in which its sockets close, can take long."""
    end: WorkerExit | None = None
    """How."""
    heartbeat_t: float | None = None
    frozen_since: float | None = Watched(None)  # type: ignore[assignment]
    use: RankUse | None = None
    """What it uses, as its agent saw last."""
    failure: Failure | None = Watched(None)  # type: ignore[assignment]

    def noted(self) -> None:
        """Have the round count it anew (`Watched`)."""
        self.round.tally.changed.add(self)

    @property
    def over(self) -> bool:
        """Whether it has nothing left to do in this round."""
        return self.finished is not None or self.stopped is not None or self.exited

    @property
    def left_t(self) -> float | None:
        """When it left with code 0 as far as is known, seconds since the epoch."""
        if self.leaving_t is None and self.finished is not None:
            return self.ended_t
        return self.leaving_t

    def sample(self) -> dict[str, Any]:
        """Return its part of a line of samples.jsonl."""
        return {
            "rank": self.rank,
            "host": self.node.host,
            "step": self.step,
            "step_time_s": self.step_time_s,
            "own_s": round(statistics.median(self.own_s), 7) if self.own_s else None,
            **{k: getattr(self.use, k, None) for k in _USED},
        }

    def picture(self, now: float) -> dict[str, Any]:
        """Return its part of state.json."""
        return {
            **self.sample(),
            "node": self.node.index,
            "phase": "ended" if self.exited else self.phase,
            "data_part": round(self.recent_data_s / self.recent_s, 3) if self.recent_s else None,
            "kept_waiting": self.round.pauses.count(self.rank, now),
            **{k: getattr(self, k) for k in ("local_rank", "pid", "ended_t", "heartbeat_t")},
        }


class Round:
    """One life of the process group."""

    def __init__(
        self,
        number: int,
        nodes: list[Node],
        *,
        tasks_per_node: int,
        resume: CommittedCheckpoint | None,
        hangs: HangWatch,
        script: bool,
    ) -> None:
        self.number = number
        self.nodes = nodes
        self.resume = resume
        self.hangs = hangs
        self.pauses = Pauses()
        self.script = script
        self.first = resume.step if resume else 0
        """The step that it begins after."""
        self.step = self.first
        """Optimizer steps done, by the furthest rank."""
        self.tally = Tally()
        self.ranks = [
            Rank(self, g * tasks_per_node + i, node, i, step=self.first, attached=not script)
            for g, node in enumerate(nodes)
            for i in range(tasks_per_node)
        ]
        self.tally.changed.update(self.ranks)
        self.of_node = {node: self.ranks[g * tasks_per_node : (g + 1) * tasks_per_node] for g, node in enumerate(nodes)}
        """The ranks of each node."""
        self.master_addr = nodes[0].address
        self.master_port: int | None = None
        self.began = 0.0
        self.stepped = False
        self.ending = False
        self.cleared: set[int] = set()
        self.store_problem: str | None = None
        self.failed_at: float | None = None
        self.lost: list[Node] = []
        self.broken_gpus: set[str] = set()
        """Hosts whose driver reported that a GPU has failed."""
        self.stacks: set[int] = set()
        self.stopped_at: float | None = None
        """When every rank had stopped as agreed."""
        self.asked_at: float | None = None
        """When everybody was asked where they are, because nobody progresses."""
        self.bad_metrics = BadMetrics()
        self.total_steps: int | None = None
        self.epoch: int | None = None
        self.epochs: int | None = None
        self._pace: deque[tuple[float, int]] = deque()

    # --- what is asked of it ---

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def all_ready(self) -> bool:
        """Whether collectives work everywhere, or the work needs none."""
        return self.tally["ready"] == self.world_size

    @property
    def plain(self) -> bool:
        """Whether some rank is a script that is not attached: only TERM tells it to stop."""
        return self.tally["plain"] > 0

    @property
    def handles_usr2(self) -> bool:
        """Whether some rank is a script with its own handler for USR2. When it ends, the collectives of the others fail."""
        return self.tally["handles_usr2"] > 0

    def is_done(self, step: int) -> bool:
        """Return whether the run has no step after this one, as far as the ranks have reported how many there are."""
        return self.total_steps is not None and step >= self.total_steps

    @property
    def failures(self) -> list[Failure]:
        """What is known of failed ranks."""
        return [r.failure for r in self.ranks if r.failure is not None] if self.tally["failed"] else []

    @property
    def all_finished(self) -> bool:
        """Whether every rank has done all its work; a script has ended, too, and so has written what it had open."""
        return self.tally["done"] == self.world_size

    @property
    def last_finished(self) -> int:
        """The last step of the ranks that have done all their work; 0: none has."""
        return max(rank.finished or 0 for rank in self.ranks)

    @property
    def unsaved(self) -> bool:
        """Whether some rank finished although its part of the last checkpoint is not durable."""
        return self.tally["unsaved"] > 0

    def hung(self, now: float) -> float | None:
        """Return the limit that is over, in seconds, or None (`HangWatch.hung`)."""
        if self.tally["over"] == self.world_size:
            return None
        frozen = [r.frozen_since for r in self.ranks if r.frozen_since is not None] if self.tally["frozen"] else []
        return self.hangs.hung(now, self.tally.phases, max((now - t for t in frozen), default=0.0))

    def views(self, now: float) -> list[RankView]:
        """Return what the hang watch looks at: ranks that still have something to do."""
        return [
            RankView(
                r.rank,
                r.phase,
                r.step,
                now - r.frozen_since if r.frozen_since is not None else 0.0,
                r.at,
                r.collectives,
            )
            for r in self.ranks
            if not r.over
        ]

    def left_unfinished(self) -> list[Rank]:
        """Return the ranks that have ended well before the last step, as far as that is known: the others may wait for them."""
        last = self.total_steps or self.step
        return [r for r in self.ranks if r.finished is not None and r.finished < last]

    def settled(self, now: float) -> bool:
        """Return whether something has failed and enough is known to name what failed first."""
        if self.lost or self.store_problem:
            return True
        if self.failed_at is None:
            return False
        patience = _SETTLE_SCRIPT_S if self.script else _SETTLE_S
        failures = self.failures
        if symptom_only(failures):
            patience = _SETTLE_SYMPTOMS_S
        if not self.stepped and len(failures) < self.world_size and all(map(left_by_itself, failures)):
            patience = _SETTLE_EXITS_S
        return now - self.failed_at >= patience

    def rate(self, now: float) -> float | None:
        """Return steps per second over the last minute."""
        while len(self._pace) > 2 and now - self._pace[0][0] > 60:
            self._pace.popleft()
        if len(self._pace) < 2 or self._pace[-1][0] <= self._pace[0][0]:
            return None
        (t0, s0), (t1, s1) = self._pace[0], self._pace[-1]
        return round((s1 - s0) / (t1 - t0), 4)

    # --- what is heard ---

    def set_phase(self, rank: Rank, phase: str, now: float) -> None:
        """Note what a rank is doing."""
        if rank.phase != phase:
            if rank.phase_since:
                self.hangs.left_phase(rank.phase, now - rank.phase_since)
            rank.phase, rank.phase_since = phase, now
            self.hangs.progressed(now)

    def progressed(
        self, rank: Rank, said: RankUse | WorkerProgress, common: Alive | WorkerProgress, now: float
    ) -> bool:
        """Take in a rank's progress; true when the run as a whole has got further. ``common`` is what all ranks have alike."""
        step = said.step or 0
        usual_s, longest_s = (said.usual_s, said.longest_s) if isinstance(said, RankUse) else (said.step_time_s, None)
        rank.attached = True
        rank.heartbeat_t = clock.now()
        if said.step_time_s is not None:
            rank.step_time_s = said.step_time_s
            rank.recent_s = _FADES * rank.recent_s + said.step_time_s
            rank.recent_data_s = _FADES * rank.recent_data_s + (said.data_s or 0.0)
            if said.wait_s is not None:
                # Not the mean: a pause now and then makes no rank a slow one.
                rank.own_s.append(max(0.0, (usual_s or said.step_time_s) - said.wait_s))
        self._learn_size(common)
        if step <= rank.step:
            return False
        further = self.reached(rank, step)
        rank.entered = max(rank.entered or 0, step)
        self.hangs.progressed(now, usual_s, longest_s)
        if further:
            self._pace.append((now, step))
        return further

    def beat(self, node: Node, said: Alive, now: float) -> None:
        """Take in a heartbeat that tells of all ranks of its node together."""
        t = clock.now()
        for rank in self.of_node.get(node, ()):
            if rank.heartbeat_t is not None:
                rank.heartbeat_t = t
            if said.slowest is not None and said.slowest > rank.step:
                rank.step, rank.entered = said.slowest, max(rank.entered or 0, said.slowest)
        if said.fastest is None:
            return
        self._learn_size(said)
        self.hangs.progressed(now, said.usual_s, said.longest_s)
        if said.fastest > self.step:
            self.step = said.fastest
            self._pace.append((now, said.fastest))

    def _learn_size(self, said: Alive | WorkerProgress) -> None:
        """Take in how much work there is, and in which epoch it is."""
        if said.total_steps is not None:
            self.total_steps = said.total_steps or None  # 0: what was said is not all
        self.epoch = self.epoch if said.epoch is None else said.epoch
        self.epochs = self.epochs if said.epochs is None else said.epochs

    def is_at(self, rank: Rank, message: WorkerAt) -> None:
        """Take in the answer to ``where``."""
        rank.at, rank.collectives = message.step, message.collectives
        self.pauses.answered(rank.rank, message.waits)

    def reached(self, rank: Rank, step: int) -> bool:
        """Note a rank's step; true when the run as a whole has got further."""
        further = step > self.step
        rank.step, self.step = max(rank.step, step), max(self.step, step)
        return further

    def failing(self, rank: Rank, now: float) -> Failure:
        """Return the record of a failing rank; the first report of it begins one."""
        if rank.failure is None:
            step = rank.step if rank.attached else None  # a plain script reports no steps
            rank.failure = Failure(rank.rank, rank.node.host, clock.now(), step=step, after_end=self.ending)
        if self.failed_at is None:
            self.failed_at = now
        return rank.failure

    def left_early(self, victims: list[Failure]) -> list[Failure]:
        """Return the ranks of a script that had ended with code 0 when others failed, with work left for them, or for all the others.

        torchrun allows that, and the others may need them. A process closes its sockets before it has ended: its end may be heard of
        after the failures that follow from it. One that ends by ``os._exit`` has said nothing before. Who left long before is not missed.
        """
        left = [(r, t, r.step if r.finished is None else r.finished) for r in self.ranks if (t := r.left_t) is not None]
        if not left:
            return []  # else the logs of all victims are read
        failed_t = min(f.t for f in victims)
        long_ago_s = _MISSED_LATE_S if any(cause_of(f).kind == "timeout" for f in victims) else _MISSED_S
        return [
            Failure(r.rank, r.node.host, left_t, step=r.step or None, kind="exit", exit_code=0, message=said)
            for r, left_t, step in left
            if (said := left_behind(victims, step) if self.is_done(step) else "") is not None
            if -long_ago_s <= left_t - failed_t <= _SETTLE_SYMPTOMS_S
        ]

    def send(self, message: ToWorker, ranks: list[int] | None = None) -> None:
        """Send a message to the workers, or to some of them."""
        everybody = ToWorkers(round=self.number, ranks=None, message=message.to_wire())
        chosen = None if ranks is None or len(ranks) == self.world_size else set(ranks)
        for node, own in self.of_node.items():
            live = [r.rank for r in own if not r.exited and (chosen is None or r.rank in chosen)]
            if len(live) == len(own):
                node.send(everybody)
            elif live:
                node.send(ToWorkers(round=self.number, ranks=live, message=everybody.message))

    def located(self, now: float, within_s: float) -> bool:
        """Ask every rank where it is; true when all have answered, or have had so long to."""
        if self.asked_at is None:
            self.asked_at = now
            for rank in self.ranks:
                rank.at = None
            self.send(AskUnit())
        return now - self.asked_at > within_s or all(r.at is not None for r in self.ranks if not r.over)

    def all_nodes(self, answered: set[int]) -> bool | None:
        """Return True when every node that is still connected has ``answered``; None before."""
        return all(not node.here or node.index in answered for node in self.nodes) or None

    def tell_nodes(self, message: ToAgent) -> None:
        """Send a message to every node of the round that is still connected."""
        for node in self.nodes:
            node.send(message)
