"""What the leader and the keeper (`launcher.node.allocation.keeper`) say to each other."""

from __future__ import annotations

from launcher.node.wire.messages import FromAgent, ToAgent


class KeeperHello(FromAgent, type="keeper"):
    """The keeper (`launcher.node.allocation.keeper`) joins: it can start agents again."""

    pid: int
    mark: str | None
    start_s: float
    """How long the first leader took from srun to its first answer: setup lines, the container, Python."""


class NotRevived(FromAgent, type="not_revived"):
    """The keeper could not start the agent of a node again, or the step that did has ended."""

    node: int
    order: int
    """Of `Revive`."""
    why: str
    step_cancelled: bool = False
    """Somebody has cancelled a step of the job, perhaps the lost agent's."""


class KeeperWelcome(ToAgent, type="keeper_welcome"):
    """What the keeper needs to know of the leader."""

    pid: int
    mark: str | None
    """What tells its process from others of that id (`launcher.run.processes.mark_of`)."""
    nodes: list[str]
    """The names of all nodes, by index."""
    start_s: float = 0.0
    """What a keeper before this one has told (`KeeperHello`): one that is started again finds a leader that leads."""


class Revive(ToAgent, type="revive"):
    """Start the agent of a node again."""

    node: int
    host: str
    """As SLURM calls it."""
    address: str
    """Where other nodes reach it."""
    order: int
    """Goes up with each order for this node."""
    pid: int | None
    mark: str | None
    """Of the agent that is lost: it may only stand still."""


class WithdrawRevival(ToAgent, type="withdraw"):
    """The agent of that node has come back by itself: start no other one, and end one that is starting."""

    node: int
    order: int
