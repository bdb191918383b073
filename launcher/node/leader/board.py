"""The state that all parts of the leader share: one object, changed only in the leader's event loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from launcher.frozen import frozen
from launcher.node.allocation.allocation import Allocation
from launcher.node.leader.agreed_stop import AgreedStop
from launcher.node.leader.journal import HistoryWriter
from launcher.node.leader.nodes import Nodes
from launcher.node.leader.own_files import OwnFiles
from launcher.node.leader.rounds import Round
from launcher.node.leader.saving import Blocking, Saver
from launcher.node.leader.tracking import Tracking
from launcher.node.policy.budgets import Budgets
from launcher.node.policy.decisions import Evidence, Kind
from launcher.node.sidecars.notify import Notifier
from launcher.node.wire.messages import ChecksDone
from launcher.run.gone import Anchor
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec


@frozen
class Timing:
    """The leader's own patience, in seconds."""

    tick_s: float = 0.1
    spare_wait_s: float = 10.0
    """Enough nodes are here: spares are waited for so long."""
    store_s: float = 60.0
    clear_s: float = 15.0
    """A node that cannot end its workers in so long is not used again."""
    dump_s: float = 2.0
    preflight_s: float = 90.0
    leave_s: float = 6.0
    agree_s: float = 600.0
    """A stop without a deadline (``cancel --save``) is given up when workers have not agreed by then."""


@dataclass
class Interrupt:
    """A stop that was asked for."""

    kind: Kind
    text: str
    deadline: float | None
    """The leader's clock; None: no hurry."""
    began: float
    started: bool = False
    """The workers have been told."""


_RANKING = (
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
    attempt: int
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
    anchor: Anchor | None = None
    """Holds the run's folder, wherever somebody moves it."""
    first_of_submission: bool = True
    """No attempt has begun since somebody last submitted the run: ``resubmit --from`` applies to this one alone."""
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
    own_files: OwnFiles = field(default_factory=OwnFiles)
    ports: dict[int, int] = field(default_factory=dict)
    """Ports of stores that are up, by round."""
    preflight: dict[int, ChecksDone] = field(default_factory=dict)
    blamed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The host that failed last: newest checkpoint then, and how often in a row."""
    metrics: dict[str, Any] = field(default_factory=dict)
    failures: int = 0
    """Interruptions of all attempts, for the interval between saves."""

    def now(self) -> float:
        """The leader's clock: monotonic seconds."""
        return asyncio.get_running_loop().time()

    def wake(self) -> None:
        """Have `until` look again: something changed."""
        self.changed.set()

    async def look_at_own_files(self) -> bool:
        """Return whether the script has written a newer checkpoint of its own, and report it as saved."""
        pattern = self.spec.checkpoint.watch
        path = await self.blocking(lambda: self.own_files.look(self.paths.root, pattern)) if pattern else None
        if path is not None:
            self.history.event("saved", step=None, path=path, reason="watch")
        return path is not None

    def stop_wanted(self, kind: Kind, text: str, within_s: float | None) -> None:
        """Ask for a stop; of two, the reason that outranks and the nearer deadline hold."""
        now = self.now()
        deadline = None if within_s is None else now + within_s
        if kind is Kind.CANCELLED:
            self.cancelled = True
        old = self.interrupt
        if old is None:
            self.interrupt = Interrupt(kind, text, deadline, now)
        else:
            if _RANKING.index(kind) > _RANKING.index(old.kind):
                old.kind, old.text = kind, text
            if deadline is not None and (old.deadline is None or deadline < old.deadline):
                old.deadline = deadline
        self.wake()
