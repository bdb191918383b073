"""What a worker does differently in a rehearsal (`launcher dry-run`): it ends early, and one is killed to test recovery."""

from __future__ import annotations

import gc
import os
import signal
import time
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from launcher.training.ddp.optimizers import bearer, parts, saves_its_parts
from launcher.training.ddp.wrapping import is_exact
from launcher.training.process.place import WorkerPlace

_LIMIT_S = 120.0
"""The rehearsal's checkpoint is committed by then, or the rehearsal fails."""


class Rehearsed(BaseException):
    """Ends a loop of the user's own that has done a rehearsal's steps and does not ask whether to stop."""


def die_behind_a_checkpoint(place: WorkerPlace) -> None:
    """End this process by SIGKILL as soon as there is a committed checkpoint to resume from."""
    deadline = time.monotonic() + _LIMIT_S
    while place.paths and not any(place.paths.checkpoints.glob("step-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def unregistered(registered: list[Any]) -> list[str]:
    """Name the objects of this process that decide how training continues, and that ``registered`` does not hold."""
    gc.collect()
    known = {id(part) for thing in registered for part in parts(thing)}
    kinds = {
        "optimizer": torch.optim.Optimizer,
        "scheduler": torch.optim.lr_scheduler.LRScheduler,
        "gradient scaler": torch.amp.GradScaler,
    }
    alive = {kind: [o for o in gc.get_objects() if issubclass(type(o), base)] for kind, base in kinds.items()}
    found = [
        f"{kind} {type(thing).__name__}"
        for kind, things in alive.items()
        for thing in things
        if id(thing) not in known and bearer(thing) is thing and _has_state(thing)
    ]
    saved = {id(p) for thing in registered if isinstance(thing, torch.nn.Module) for p in thing.parameters()}
    # An object that saves an optimizer inside it also saves weights that only that one holds (apex's copies in full precision).
    saved |= {id(part) for thing in registered if saves_its_parts(thing) for part in parts(thing)}
    for thing in alive["optimizer"]:
        if id(thing) not in saved and bearer(thing) is thing:
            trained = [p for group in thing.param_groups for p in group["params"]]
            if not all(id(p) in saved for p in trained):
                found.append(f"weights that {type(thing).__name__} trains")
    return sorted(set(found))


def _has_state(thing: Any) -> bool:
    """Whether there is anything to save: a disabled GradScaler has nothing."""
    try:
        return bool(thing.state_dict())
    except Exception:  # a sharded optimizer's, before its parts are brought together: there is a state
        return True


def has_inexact_replica() -> bool:
    """Whether a DDP in this process sums the gradients of its first step in another order than those of later ones."""
    return any(issubclass(type(o), DistributedDataParallel) and not is_exact(o) for o in gc.get_objects())
