"""The state that all parts of the leader share: one object, changed only in the leader's event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from launcher.frozen import frozen
from launcher.node.allocation.allocation import Allocation
from launcher.node.checkpoints.claims import Claim
from launcher.node.leader.agreed_stop import AgreedStop
from launcher.node.leader.folder_retries import Blocking
from launcher.node.leader.journal import HistoryWriter
from launcher.node.leader.nodes import Node, Nodes
from launcher.node.leader.own_files import newest_of
from launcher.node.leader.rounds import Round
from launcher.node.leader.saving import Saver
from launcher.node.leader.tracking import Tracking
from launcher.node.policy.budgets import Budgets
from launcher.node.policy.decisions import Evidence, Kind
from launcher.node.sidecars.notify import Notifier
from launcher.node.wire.messages import Link
from launcher.run.causes import KIND_OF
from launcher.run.event_parts import Cause
from launcher.run.gone import Anchor
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec

_T = TypeVar("_T")

OVER = Evidence(Kind.FENCED, "another leader has taken over")


def caused(kind: Kind, text: str, hosts: tuple[str, ...] = (), rank: int | None = None) -> Evidence:
    """Return evidence whose cause is not the end of a process."""
    return Evidence(kind, text, Cause.plain(KIND_OF[kind.value], text), hosts, rank)


@frozen
class Timing:
    """How long the leader waits, in seconds."""

    tick_s: float = 0.1
    spare_wait_s: float = 10.0
    """For spares, once enough nodes are here."""
    store_s: float = 60.0
    clear_s: float = 15.0
    """A node that has not ended its workers by then is not used again."""
    dump_s: float = 2.0
    preflight_s: float = 90.0
    rejoin_s: float = 3.0
    """After a leader's death its agents are waited for so long; then those that have not joined are started again."""
    revive_s: float = 20.0
    """For an agent that is started again to join, beside twice what the first leader took to start."""
    rejoin_wait_s: float = 60.0
    """Agents wait so long for the next leader, beside the same."""
    leave_s: float = 6.0
    agree_s: float = 600.0
    """A stop without a deadline (``cancel --save``) is given up when workers have not agreed by then."""


@dataclass
class KeeperLink:
    """The keeper as the leader knows it."""

    link: Link
    pid: int
    mark: str | None
    heard: float
    """When it last sent anything, by the leader's clock."""


@dataclass
class Interrupt:
    """A stop that was asked for."""

    evidence: Evidence
    deadline: float
    """By the leader's clock; infinite: none."""
    began: float
    started: bool = False
    """The workers have been told."""


_RANKING = (
    Kind.NODE_LEAVES,
    Kind.IDLE,
    Kind.TIME_LIMIT,
    Kind.PREEMPTED,
    Kind.HOURS,
    Kind.UNKNOWN_SIGNAL,
    Kind.PREEMPTED_NOW,
    Kind.SCRIPT_GONE,
    Kind.USER_STOP,
    Kind.TERMINATED,
    Kind.CANCELLED,
)
"""Later ones outrank earlier ones. A request to end the run outranks one that takes its nodes away: that run would come back."""


@dataclass
class Board:
    """The leader's state of an attempt."""

    spec: RunSpec
    paths: RunPaths
    claim: Claim
    allocation: Allocation
    history: HistoryWriter
    nodes: Nodes
    saver: Saver
    budgets: Budgets
    blocking: Blocking
    timing: Timing
    changed: asyncio.Event
    host: str
    began_t: float
    notifier: Notifier
    tracking: Tracking
    anchor: Anchor
    """Holds the run's folder, wherever somebody moves it."""
    first_of_submission: bool
    """No attempt has begun since somebody last submitted the run: ``resubmit --from`` applies to this one alone."""
    failures: int
    """Interruptions of all attempts, for the interval between saves."""
    phase: str = "waiting"
    round: Round | None = None
    stop: AgreedStop | None = None
    interrupt: Interrupt | None = None
    cancelled: bool = False
    fenced: bool = False
    woke_at: float | None = None
    """When this leader went on after standing still for longer than agents wait for it."""
    hang: Evidence | None = None
    at_risk: Evidence | None = None
    term_sent: bool = False
    """Script workers have been sent TERM: whatever they exit with now means stopped."""
    usr2_sent: bool = False
    """SLURM has sent USR2 to every process: whatever ends a script that handles it means stopped."""
    own_files: dict[str, tuple[int, int]] = field(default_factory=dict)
    """A script's own checkpoints that were seen so far. None is forgotten: a folder that does not answer shows some of them again
    later."""
    own_saved_t: float = -math.inf
    """When the newest of them was seen that a later look found finished, by the leader's clock."""
    _own_new_t: float = -math.inf
    _one_look: asyncio.Lock = field(default_factory=asyncio.Lock)
    ports: dict[int, int] = field(default_factory=dict)
    """Ports of stores that are up, by round."""
    blamed: list[tuple[str, int]] = field(default_factory=list)
    """The host that failed last and how much progress there was by then, as often as both were the same in a row."""
    metrics: dict[str, Any] = field(default_factory=dict)
    sizes: set[int] = field(default_factory=set)
    """Numbers of nodes, fewer than the job wants, that rounds had; each is named once."""
    keeper: KeeperLink | None = None
    """Starts agents again, where it is there."""
    keeper_lost_at: float | None = None
    """When it was lost, by the leader's clock, until that has been told."""
    leader_start_s: float = 0.0
    """How long the first leader took to start, as a keeper has told."""
    moved: bool = False
    """The job's first host is lost, and its batch script with it."""
    asked: int = 0
    """Replacements in a row that were asked for without one that has helped."""
    refused_at: float | None = None
    """When SLURM last refused a replacement, by the leader's clock."""
    line: list[int] = field(default_factory=list)
    """The nodes next in line to lead, as the agents know them."""
    regathers: bool = False
    """The nodes were together before, under a leader that died: they are awaited for seconds, and started again."""
    held: bool = False
    """A hold: its nodes have been there."""

    @property
    def start_s(self) -> float:
        """How long an agent may take to start: twice what the first leader took."""
        return 2 * self.leader_start_s

    @property
    def attempt(self) -> int:
        """The number of the attempt."""
        return self.claim.attempt

    def now(self) -> float:
        """Return the leader's time: monotonic seconds."""
        return asyncio.get_running_loop().time()

    def wake(self) -> None:
        """Have `until` look again: something changed."""
        self.changed.set()

    async def until(self, look: Callable[[float], _T | None], *, timeout_s: float = math.inf) -> _T | None:
        """Return what ``look(now)`` returns once that is not None; None when ``timeout_s`` have passed.

        Looks at every change and at every tick, since time alone can change the answer.
        """
        deadline = self.now() + timeout_s
        while True:
            self.changed.clear()
            found = look(self.now())
            if found is not None:
                return found
            left_s = deadline - self.now()
            if left_s <= 0:
                return None
            # Not wait_for: before Python 3.12 it may swallow a cancellation.
            change = asyncio.ensure_future(self.changed.wait())
            try:
                await asyncio.wait({change}, timeout=min(self.timing.tick_s, max(0.001, left_s)))
            finally:
                change.cancel()

    @property
    def interrupted(self) -> Evidence | None:
        """Evidence of a stop that was asked for, if one was."""
        if self.fenced:
            return OVER
        return self.interrupt.evidence if self.interrupt else None

    @property
    def needed_nodes(self) -> int:
        """Nodes without which this run cannot go on; a hold that has begun keeps what it has left."""
        return 1 if self.spec.hold and (self.held or self.regathers) else self.spec.needed_nodes

    @property
    def saved_t(self) -> float:
        """When this attempt last had a new checkpoint, the launcher's or the script's own; minus infinity before the first."""
        return max(self.own_saved_t, -math.inf if self.saver.last_t is None else self.saver.last_t)

    async def look_at_own_files(self) -> bool:
        """Return whether the script has written a newer checkpoint of its own, and report it as saved."""
        if not (pattern := self.spec.checkpoint.watch):
            return False
        async with self._one_look:  # the look of a tick may still be under way
            began = self.now()
            path = await self.blocking(lambda: newest_of(self.paths.root, pattern, self.own_files))
            if path is None:
                self.own_saved_t = self._own_new_t  # nothing has changed since: it is written to its end
            else:
                self._own_new_t = began
                self.history.event("saved", step=None, path=path, reason="watch")
        return path is not None

    def exclude(self, node: Node, why: str) -> None:
        """Stop using a node in this attempt."""
        node.bad = why
        self.history.event("excluded", hosts=[node.host], why=why)

    def stop_wanted(self, kind: Kind, text: str, within_s: float | None) -> None:
        """Ask for a stop; of two, the reason that outranks and the nearer deadline hold."""
        self.cancelled = self.cancelled or kind is Kind.CANCELLED
        now, evidence = self.now(), Evidence(kind, text)
        it = self.interrupt = self.interrupt or Interrupt(evidence, math.inf, now)
        if _RANKING.index(kind) > _RANKING.index(it.evidence.kind):
            it.evidence = evidence
        if within_s is not None:
            it.deadline = min(it.deadline, now + within_s)
        self.wake()
