"""More events (`launcher.run.events` has them, too): agents started again, replacement nodes, the job queued early, reruns."""

from __future__ import annotations

from launcher.run.event_base import Event


class AgentRevived(Event, type="agent_revived"):
    """The agent of a lost node was started again, in the same allocation."""

    host: str | None
    seconds: float | None
    """Since that was asked for."""


class RevivalFailed(Event, type="revival_failed"):
    """The agent of a lost node could not be started again."""

    host: str | None
    why: str | None


class ReplacementAsked(Event, type="replacement_asked"):
    """A one-node job was submitted for a node that is missing."""

    node: int | None
    """The index that its node has."""
    job_id: str | None


class ReplacementRefused(Event, type="replacement_refused"):
    """No job could be submitted for a node that is missing."""

    why: str | None


class QueuedEarly(Event, type="queued_early"):
    """The job of the next attempt was queued, held until this one's time limit."""

    job_id: str | None


class RerunStarted(Event, type="rerun_started"):
    """A run began to train in this hold's allocation."""

    run: str | None
    hosts: list[str] | None


class RerunEnded(Event, type="rerun_ended"):
    """A rerun is over; the hold goes on."""

    run: str | None
    state: str | None
    reason: str | None
