"""What a worker does differently in a rehearsal (`launcher dry-run`): it ends early, and one dies for the drill."""

from __future__ import annotations

import os
import signal
import time

from launcher.training.place import Place

__all__ = ["die_behind_a_checkpoint", "step_limit"]

PATIENCE_S = 120.0
"""The drill's checkpoint is committed by then, or the drill fails."""


def step_limit(place: Place) -> int | None:
    """Optimizer steps after which a rehearsal ends; None in real runs."""
    return place.spec.stop_after_steps if place.spec else None


def die_behind_a_checkpoint(place: Place) -> None:
    """End by SIGKILL as soon as there is a committed checkpoint to resume from."""
    deadline = time.monotonic() + PATIENCE_S
    while place.paths and not any(place.paths.checkpoints.glob("step-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
