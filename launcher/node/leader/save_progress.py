"""One save on its way: asked for, and written by the ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

from launcher.node.checkpoints.committed import Shard


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


@dataclass
class Asked:
    """A save asked for at a step ahead."""

    id: int
    step: int
    at: float
    acks: set[int] = field(default_factory=set)
    refused: bool = False
