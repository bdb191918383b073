"""Finds the leader: at the start, and again when it is lost. Where its host is lost for good, this node may be the one to lead.

Nobody is elected. The leader names the nodes that are next in line while it lives. When SLURM has removed its host from the job, the
first of them that SLURM still lists leads (`launcher.node.allocation.leaderless`). Its claim (`launcher.node.checkpoints.claims`) is
newer than the lost leader's: that one, were it only cut off, writes nothing more.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from launcher.errors import ProtocolError
from launcher.node.agent.description import resolve_host
from launcher.node.agent.membership import Door, Doors
from launcher.node.checkpoints import claims
from launcher.node.wire import connect, connection
from launcher.node.wire.messages import IN_LINE, Welcome
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.run.state import read_outcome

if TYPE_CHECKING:
    from launcher.node.allocation.leaderless import LeaderEnd

_PATIENCE_AFTER_TERM_S = 15.0
_TERM_COUNTS_S = 3600.0
"""A TERM that ended nothing for so long, while the leader lived, was none of SLURM's: its grace is over."""
_UNANSWERED_S = 60.0
"""A leader listens within moments of claiming its attempt: one that does not answer for so long has died since."""
_UNRESOLVED_S = 45.0
"""A name service that does not know the leader's host for so long never will: the node is useless, and its agent leaves."""
_DIED_S = 2.0
"""A leader whose connection closed, and that nobody starts again, is waited for so long on a host that lives."""
_IN_LINE_S = 700.0
"""The agents wait so long until another node leads: SLURM removes a host within minutes."""
_DECIDED_S = 10.0
"""Where this node does not lead, a leader is looked for so much longer. SLURM ends the agents of a job that was handed back."""
_SELDOM_S = 2.0
"""How often a node that may come to lead is dialled."""


class LeaderSearch:
    """Where the leader of this life is, as far as this node knows."""

    def __init__(
        self,
        spec: RunSpec,
        paths: RunPaths,
        doors: Doors,
        environ: Mapping[str, str] = os.environ,
        *,
        leader: int = 0,
        joins: bool = False,
    ) -> None:
        """``leader``: the index of its node. ``joins``: this agent replaces a node, and its leader leads already."""
        self._spec = spec
        self._paths = paths
        self._doors = doors
        self._init_s = _UNANSWERED_S if joins else spec.init_timeout_min * 60
        self._leader = leader
        """The index of its node."""
        asks = spec.batch == "slurm" and bool(environ.get("SLURM_JOB_ID"))
        self._limit_s = _UNANSWERED_S
        self._claimed_at: float | None = None
        """When the claim of a leader of this life was seen in this search."""
        self._moves = asks and spec.needed_nodes < len(doors.names)
        """Another node leads where the leader's host is lost."""
        self.line = [] if joins else list(range(1, len(doors.names)))[:IN_LINE]
        """The nodes that are next in line, by index."""
        self.term_at: float | None = None
        """When this agent received TERM."""
        self.lost: str | None = None
        """How the leader was lost: "silent" (also when it was never found) or "closed"; None while it leads, or when it sent this agent
        away."""
        self.kept = False
        """Another leader takes the place of one that dies, on its host."""
        self.patience_s = 0.0
        """For how long that one is waited for."""
        self.end: LeaderEnd | None = None
        """What became of the leader, where that was awaited."""
        self.decided = False
        """Its end was awaited, and the answer is `end`."""
        self.leads = asyncio.Event()
        """Set when this node is to lead."""

    @property
    def place(self) -> int | None:
        """This node's place in the line, from 0."""
        return self.line.index(self._doors.node) if self._doors.node in self.line else None

    @property
    def may_lead(self) -> bool:
        """Whether this node may come to lead, and has to ask SLURM then."""
        return self._moves and self.place is not None

    @property
    def others(self) -> list[str]:
        """The names of the other nodes."""
        return self._doors.others

    @property
    def batch_host(self) -> str:
        """The host of the batch script."""
        return self._doors.names[0]

    @property
    def door(self) -> Door:
        """Where the leader is, or was."""
        return self._doors.of(self._leader)

    @property
    def leads_here(self) -> bool:
        """Whether the leader is on this node."""
        return self._leader == self._doors.node

    def welcomed(self, welcome: Welcome) -> None:
        """Note what the leader says of those that may take its place."""
        self.lost, self.kept, self.patience_s = None, welcome.kept, welcome.patience_s
        self.line = welcome.line or self.line

    def waits(self, *, welcomed: bool) -> bool:
        """Return whether another leader is waited for when one is lost that had ``welcomed`` this agent, or had not."""
        return (self.kept and welcomed) or self._moves

    async def find(self) -> connection.Peer | None:
        """Connect to the leader, also to one on this node; None when the run has ended already.

        Raises ProtocolError after ``init_timeout_min``, when it has begun and is gone before this agent found it, and when nobody leads
        in its place.
        """
        if self.lost and self.term_at is not None and time.monotonic() - self.term_at > _TERM_COUNTS_S:
            self.term_at = None
        searches = {self._search(index): index for index in self._where()}
        over = threading.Event()
        watch = self._watch(over) if self.lost and self.may_lead else None
        unresolved: float | None = None
        self._claimed_at = None
        self._limit_s = self._patience()
        try:
            while not (found := (await asyncio.wait(searches, timeout=1.0, return_when=asyncio.FIRST_COMPLETED))[0]):
                unresolved = None if self.lost else await self._unresolved(unresolved)
                if await asyncio.to_thread(read_outcome, self._paths.outcome) is not None:
                    _say("The run has ended already.")
                    return None
                if watch is not None and watch.done():
                    self._decide(watch.result())
                    watch = None
                    if self.leads.is_set():
                        searches[self._search(self._doors.node)] = self._doors.node
                await self._give_up_in_time(searches)
            search = found.pop()
            if search.exception() is not None:
                self.lost = self.lost or "silent"
            peer = search.result()
            self._leader = searches.pop(search)
            return peer
        finally:
            over.set()
            _end(searches)

    def _where(self) -> list[int]:
        """Return the nodes whose agent may lead now, by index."""
        if not (self.lost and self._moves):
            return [self._leader]
        mine = [self._doors.node] if self.leads.is_set() else []  # its leader runs beside this agent
        return list(dict.fromkeys([*mine, self._leader, *(i for i in self.line if i != self._doors.node)]))

    def _search(self, leader: int) -> asyncio.Future[connection.Peer]:
        door = self._doors.of(leader)
        seldom = {} if leader in (self._leader, self._doors.node) else {"pause_s": _SELDOM_S}
        limit_s = max(self._init_s, 2 * _IN_LINE_S) if self.lost and self._moves else self._init_s
        return asyncio.ensure_future(
            connect.find_leader(door.address, door.ports, door.key, timeout_s=limit_s, **seldom)
        )

    def _patience(self) -> float:
        """Return the seconds for which a leader that has claimed its attempt, or the next one, is waited for."""
        if self.lost is None:
            return _UNANSWERED_S
        return _IN_LINE_S if self._moves else self.patience_s

    async def _give_up_in_time(self, searches: Mapping[asyncio.Future[Any], int]) -> None:
        """Raise ProtocolError when nobody is to be waited for any longer."""
        patience_s = 0.0 if self.lost else _PATIENCE_AFTER_TERM_S
        if self.term_at is not None and time.monotonic() - self.term_at > patience_s and not self.leads.is_set():
            when = "and the leader is gone" if self.lost else "before it found the leader"
            raise ProtocolError(f"This agent received TERM {when}; this agent exits.")
        if self._claimed_at is None and await asyncio.to_thread(self._claimed):
            self._claimed_at = time.monotonic()
        if any(search.done() for search in searches):  # found while this node's file system kept it waiting
            return
        if self._claimed_at is not None and time.monotonic() - self._claimed_at > self._limit_s:
            self.lost = self.lost or "silent"
            raise ProtocolError("The leader has begun and does not answer; this agent exits.")

    # --- a node of the line ---

    def _watch(self, over: threading.Event) -> asyncio.Future[LeaderEnd | None]:
        """Find out in a thread what becomes of the leader that is lost, and wait until this node is to lead."""
        from launcher.node.allocation import leaderless
        from launcher.node.allocation.slurm_allocation import SlurmAllocation

        door, names, closed = self.door, self._doors.names, self.lost == "closed"
        died_s = leaderless.COMES_BACK_S if self.lost == "silent" else _DIED_S
        frozen_s = max(died_s, self.patience_s) if self.kept else died_s
        leads = lambda: asyncio.run(connect.answers(door.address, door.ports, door.key))  # noqa: E731

        def watch() -> LeaderEnd | None:
            allocation, before = SlurmAllocation(self._spec, self._paths), self._claims()
            end = leaderless.await_leader_end(
                self._paths, allocation, door.host, door.ports, leads, frozen_s=frozen_s, over=over.is_set
            )
            line = [names[index] for index in self.line]
            if end is None or not end.removed:
                # Of one whose connection closed its own last words, or srun's, tell.
                return leaderless.LeaderEnd("") if end is not None and closed else end
            mine = names[self._doors.node]
            left = leaderless.await_lead(allocation, mine, line, over=over.is_set, claims=self._claims, before=before)
            return leaderless.LeaderEnd(end.said, removed=True, left=left) if left else None

        return asyncio.ensure_future(asyncio.to_thread(watch))

    def _decide(self, end: LeaderEnd | None) -> None:
        """Lead, hand the job back, or leave it to others: a leader that answers, or SLURM, which ends the job."""
        self.end, self.decided = end, True
        if end is None:
            self._limit_s = min(self._limit_s, time.monotonic() - (self._claimed_at or time.monotonic()) + _DECIDED_S)
        elif end.removed:
            _say(f"{end.said}; this node leads now.")
            self._limit_s = math.inf
            self.leads.set()
        else:
            raise ProtocolError(f"{end.said or 'The leader has died'}; this agent exits.")

    # --- what the files and names say ---

    def _claims(self) -> int:
        """Return how many leaders the newest attempt has had; 0 when that cannot be read."""
        try:
            newest = max(claims.attempts(self._paths), default=0)
            return claims.takeovers(self._paths, newest)
        except OSError:
            return 0

    def _claimed(self) -> bool:
        """Return whether the leader of this life of the allocation has claimed its attempt."""
        try:
            newest = max(claims.attempts(self._paths), default=0)
            return claims.claimant(self._paths, newest).get("life") == self._doors.life
        except OSError:
            return False  # asked again in a second

    async def _unresolved(self, since: float | None) -> float | None:
        """Return since when the leader's name does not resolve, None when it does. Raises ProtocolError after `_UNRESOLVED_S`."""
        address = self.door.address
        if await asyncio.to_thread(resolve_host, address):
            return None
        if since is not None and time.monotonic() - since > _UNRESOLVED_S:
            raise ProtocolError(f"This node cannot resolve {address}, the leader's node.")
        return since or time.monotonic()


def _end(searches: Mapping[asyncio.Future[connection.Peer], int]) -> None:
    """End every search; of connections, the one that is used was taken out of ``searches``."""
    for search in searches:
        if not search.cancel() and not search.cancelled() and search.exception() is None:
            search.result().abort()


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} agent: {text}", file=sys.stderr, flush=True)
