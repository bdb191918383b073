"""How far a run is: saved in every checkpoint beside the registered state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Position:
    """How far the run is; the same on every rank."""

    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """Epochs done, or the one under way."""
    consumed: int = 0
    """Samples of that epoch consumed, over all ranks."""
    phase: int = 0
    """Loops over data that are done (`Worker.batches` without `Worker.epochs` may be used several times)."""
    samples: int = 0
    """Samples consumed since the beginning."""
    order: int = 0
    """A running checksum of which samples were used, in which order."""
    length: int = 0
    """Samples of the data set."""
    seed: int = 0
    """Of the order in which its samples come."""
    shuffle: int = -1
    """Whether that order is random; -1: an older version has not noted it."""
    global_batch: int = 0
    per_rank: int = 0
    """The batch size per rank that the user asked for; another value on resume means another global batch."""
