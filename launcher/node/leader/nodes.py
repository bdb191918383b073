"""The allocation's nodes as the leader knows them: connected, missing, fit to train."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from launcher.node.leader.tally import Watched
from launcher.node.wire.messages import SILENCE_S, AgentHello, ChecksDone, Link, ToAgent


@dataclass(eq=False)
class Node:
    """One node; ``index`` is its place in the allocation. It equals itself alone: looking for one among many compares no fields."""

    index: int
    name: str
    """As SLURM calls it."""
    link: Link | None = Watched(None)  # type: ignore[assignment]
    host: str = ""
    """As it calls itself; its name until it has joined."""
    address: str = ""
    """Where the other nodes reach it."""
    heard: float = 0.0
    """When it last sent anything, by the leader's clock."""
    checks: ChecksDone | None = None
    losses: list[int] = field(default_factory=list)
    """For each break of its connection in this attempt: how much progress had been committed then (`Budgets.advances`)."""
    orders: int = 0
    """How often the keeper was asked to start its agent again."""
    pid: int | None = None
    mark: str | None = None
    """Of its agent's process."""
    asked_at: float | None = None
    """When the keeper was asked to start its agent again, by the leader's clock; None: it was not, or has answered."""
    bad: str | None = Watched(None)  # type: ignore[assignment]
    """Why it is not used any more in this attempt."""
    suspect: str | None = None
    """Why the next attempt should not get it, although this one cannot do without it."""
    job: str | None = Watched(None)  # type: ignore[assignment]
    """The id of the job that holds this node alone, in place of one that is missing; None: the run's job holds it."""
    leaves: bool = Watched(False)  # type: ignore[assignment]
    """Its own job is ending, or it is not needed: no round begins with it."""
    unchecked: bool = Watched(False)  # type: ignore[assignment]
    """It has joined while the run trains, and its checks have not ended."""
    joined_at: float = 0.0
    """When it joined last, by the leader's clock."""
    lost_at: float | None = None
    """When its connection was lost, by the leader's clock; None while it is connected and before it was."""
    lost_why: str = ""
    """"silent", "closed" or "cut_off" (with all others: it is not to blame), once it was lost."""
    nodes: Nodes | None = None
    """Those that it is one of."""

    def noted(self) -> None:
        """Have the lists of nodes follow: it came, left, or became fit or unfit (`Watched`)."""
        if self.nodes is not None:
            self.nodes.changed(self)

    @property
    def here(self) -> bool:
        """Whether it is connected."""
        return self.link is not None

    @property
    def healthy(self) -> bool:
        """Whether it is connected and may train."""
        return self.here and self.bad is None and not self.leaves and not self.unchecked

    @property
    def comes(self) -> bool:
        """Whether its own job may still bring it: it has not joined yet."""
        return self.job is not None and not self.here and self.lost_at is None and self.bad is None

    def send(self, message: ToAgent) -> None:
        """Send one message; nothing happens when the node is not connected."""
        if self.link is not None:
            self.link.send(message)


class Nodes:
    """All nodes of the allocation."""

    def __init__(self, names: list[str]) -> None:
        self.all: list[Node] = []
        self._healthy: list[Node] = []
        self._missing: list[Node] = []
        for index, name in enumerate(names):
            self._take(Node(index, name, host=name))
        self._by_link: dict[Link, Node] = {}

    def join(self, link: Link, hello: AgentHello, now: float) -> Node:
        """Connect the node that said hello; ``hello.node`` must be an index of the allocation."""
        node = self.all[hello.node]
        self.drop(node)
        node.link, node.heard, node.joined_at, node.lost_at = link, now, now, None
        node.host = hello.host or node.name
        node.name = node.name or node.host
        node.pid, node.mark = hello.pid, hello.mark
        node.address = (hello.facts and hello.facts.master_addr) or node.host
        self._by_link[link] = node
        return node

    def add(self, job: str) -> Node:
        """Add a node with a job of its own, which has not joined yet."""
        return self._take(Node(len(self.all), "", job=job))

    def _take(self, node: Node) -> Node:
        self.all.append(node)
        node.nodes = self
        self.changed(node)
        return node

    def changed(self, node: Node) -> None:
        """Put a node where it belongs: with thousands of them nobody may look at all for each that joins."""
        missing = not node.here and node.bad is None and node.job is None
        for those, fits in ((self._healthy, node.healthy), (self._missing, missing)):
            at = bisect_left(those, node.index, key=lambda one: one.index)
            there = at < len(those) and those[at] is node
            if fits and not there:
                those.insert(at, node)
            elif there and not fits:
                del those[at]

    def of(self, link: Link) -> Node | None:
        """Return the node of a connection."""
        return self._by_link.get(link)

    def drop(self, node: Node) -> None:
        """Close its connection."""
        if node.link is not None:
            self._by_link.pop(node.link, None)
            node.link.close()
            node.link = None

    def silent(self, now: float) -> list[Node]:
        """Return connected nodes that have sent nothing for too long."""
        return [n for n in self.all if n.here and now - n.heard > SILENCE_S]

    def is_alone(self, own: str, now: float) -> bool:
        """Return whether none of several other nodes is heard any more: then the host ``own``, the leader's, is cut off from them."""
        others = [n for n in self.all if n.name != own and (n.here or self._was_silent(n, now))]
        return len(others) > 1 and not any(n.here and now - n.heard < SILENCE_S / 2 for n in others)

    @staticmethod
    def _was_silent(node: Node, now: float) -> bool:
        return node.lost_at is not None and node.lost_why != "closed" and now - node.lost_at < SILENCE_S

    def forgive(self, seconds: float) -> None:
        """Add the time for which the leader itself did not run: no node was silent in it."""
        for node in self.all:
            node.heard += seconds

    @property
    def healthy(self) -> list[Node]:
        """Those that may train, in the allocation's order."""
        return list(self._healthy)

    @property
    def missing(self) -> list[Node]:
        """Those of the run's job that have not joined (and are not given up)."""
        return list(self._missing)
