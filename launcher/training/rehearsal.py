"""What a worker does differently in a rehearsal (`launcher dry-run`): it ends early, and one dies for the drill."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from launcher.training.place import Place
from launcher.training.wrapping import is_exact

__all__ = ["Rehearsed", "die_behind_a_checkpoint", "has_inexact_replica", "unregistered"]

PATIENCE_S = 120.0
"""The drill's checkpoint is committed by then, or the drill fails."""


class Rehearsed(BaseException):
    """Unwinds a loop of the user's own that has done a rehearsal's steps and does not ask whether to stop."""


def die_behind_a_checkpoint(place: Place) -> None:
    """End by SIGKILL as soon as there is a committed checkpoint to resume from."""
    deadline = time.monotonic() + PATIENCE_S
    while place.paths and not any(place.paths.checkpoints.glob("step-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def unregistered(registered: list[Any]) -> list[str]:
    """What lives in this process, decides how training goes on, and is in nothing of ``registered``: in words."""
    gc.collect()
    known = {id(part) for thing in registered for part in _parts(thing, 3)}
    kinds = {
        "optimizer": torch.optim.Optimizer,
        "scheduler": torch.optim.lr_scheduler.LRScheduler,
        "gradient scaler": torch.amp.GradScaler,
    }
    everything = gc.get_objects()
    found = [
        f"{kind} {type(thing).__name__}"
        for kind, base in kinds.items()
        for thing in everything
        if issubclass(type(thing), base) and id(thing) not in known
    ]
    saved = {id(p) for thing in registered if isinstance(thing, torch.nn.Module) for p in thing.parameters()}
    for thing in everything:
        if issubclass(type(thing), torch.optim.Optimizer):
            trained = [p for group in thing.param_groups for p in group["params"]]
            if not all(id(p) in saved for p in trained):
                found.append(f"weights that {type(thing).__name__} trains")
    return sorted(set(found))


def has_inexact_replica() -> bool:
    """Whether a DDP in this process sums the gradients of its first step in another order than those of later ones."""
    return any(issubclass(type(o), DistributedDataParallel) and not is_exact(o) for o in gc.get_objects())


def _parts(thing: Any, depth: int) -> Iterator[Any]:
    """``thing`` and what its attributes hold: wrappers and chains save what they are made of (schedulers no optimizer)."""
    yield thing
    if depth and not isinstance(thing, torch.nn.Module | torch.Tensor):
        is_scheduler = isinstance(thing, torch.optim.lr_scheduler.LRScheduler)
        for name, value in getattr(thing, "__dict__", {}).items():
            if is_scheduler and name == "optimizer":
                continue
            for part in value if isinstance(value, list | tuple) else [value]:
                if hasattr(part, "state_dict"):
                    yield from _parts(part, depth - 1)
