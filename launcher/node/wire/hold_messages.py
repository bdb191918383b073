"""What is said about the reruns of a hold: by the leader of the hold, its agents, and the commands that connect to it as agents do."""

from __future__ import annotations

from launcher.node.wire.messages import FromAgent, ToAgent


class StartRerun(FromAgent, type="start_rerun"):
    """A command asks the leader of a hold to have a run train in it."""

    run: str
    """Its id: its folder is beside the hold's."""
    nodes: int
    """Nodes without which it cannot start."""
    most_nodes: int
    """It takes no more."""


class StopRerun(FromAgent, type="stop_rerun"):
    """A command asks the leader of a hold to stop a rerun, or the hold itself, where the job is not its own (salloc)."""

    run: str
    save: bool


class JoinedRerun(FromAgent, type="joined_rerun"):
    """This agent takes part in a rerun."""

    run: str
    restarted: list[str]
    """Keys of the job for which torch has to be imported again: their values are others than the fork server was started with."""


class LeftRerun(FromAgent, type="left_rerun"):
    """A rerun is over on this node. The node on which its leader was says why; how it ended is in its outcome."""

    run: str
    problem: str = ""
    """Why it could not begin here, or what this node lost."""
    reason: str = ""


class JoinRerun(ToAgent, type="join_rerun"):
    """Take part in a rerun."""

    run: str
    node: int
    """The index that this node has in it. Its leader is on node 0."""
    hosts: list[str]
    """The names of its nodes, by index."""


class ForwardStop(ToAgent, type="forward_stop"):
    """Stop the rerun whose leader is, or will be, on this node."""

    run: str
    cause: str
    """As `launcher.node.policy.decisions.Kind`."""
    text: str
    """The clause for a user."""
    left_s: float | None
    """Seconds until the stop must be complete; None: no limit."""


class EndRerun(ToAgent, type="end_rerun"):
    """End what is left of a rerun on this node, at once."""

    run: str


class RerunAccepted(ToAgent, type="rerun_accepted"):
    """To a command: the rerun has begun."""

    run: str
    restarted: list[str]
    """As in `JoinedRerun`."""


class RerunRefused(ToAgent, type="rerun_refused"):
    """To a command: what it asked for cannot be done."""

    run: str
    why: str
    """A sentence without a full stop."""


class RerunFinished(ToAgent, type="rerun_finished"):
    """To a command: the rerun is over."""

    run: str
    state: str
    reason: str
    exit_code: int
