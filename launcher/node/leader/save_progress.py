"""One save on its way: asked for, and written by the ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

from launcher.node.checkpoints.committed import Shard

PENDING_S = 1800.0
"""A save of which nothing was heard for so long is not coming (a script may not save when asked), or is stuck."""


@dataclass
class Save:
    """One save being written by the workers of a round."""

    step: int
    began: float
    reason: str = "interval"
    shards: dict[int, Shard] = field(default_factory=dict)
    seconds: float = 0.0
    blocked_s: float = 0.0
    failed: bool = False
    committing: bool = False
    heard: float = 0.0
    """When a rank began it, or its latest shard came; 0: no rank has begun."""

    def is_late(self, now: float) -> bool:
        """Return whether parts are missing and nothing was heard of it for too long."""
        return not self.committing and now - max(self.began, self.heard) > PENDING_S

    def is_stuck(self, now: float) -> bool:
        """Return whether it is late although ranks have begun it."""
        return self.heard > 0.0 and self.is_late(now)


@dataclass
class Asked:
    """A save asked for at a step ahead."""

    id: int
    step: int
    at: float
    acks: set[int] = field(default_factory=set)
    refused: bool = False
