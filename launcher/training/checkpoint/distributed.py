"""State of which each rank has a part: DTensors, as FSDP2 and tensor parallelism make them. Gathered to be saved, cut to be loaded.

A checkpoint holds whole tensors, so that any number of ranks can resume from it. Rank 0 needs host memory for all of them.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch

from launcher.errors import CheckpointError
from launcher.training.checkpoint.plain import map_leaves

_MODULES = ("torch.distributed.tensor", "torch.distributed._tensor")
"""Where DTensor is, and was before torch 2.5. Never imported here: who has one has imported it."""
_FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"


def is_in_parts(thing: Any) -> bool:
    """Return whether a module, an optimizer or what else has a state holds DTensors."""
    if (kind := _dtensor()) is None:
        return False
    if isinstance(thing, torch.nn.Module):
        return any(isinstance(value, kind) for value in (*thing.parameters(), *thing.buffers()))
    if isinstance(thing, torch.optim.Optimizer):
        return any(isinstance(value, kind) for value in _parameters(thing))
    try:
        return bool(_by_path(thing.state_dict(), kind))
    except Exception:  # it may have no state before the first step
        return False


def is_part(leaf: Any) -> bool:
    """Return whether a value is a DTensor, of which this rank has a part alone."""
    return (kind := _dtensor()) is not None and isinstance(leaf, kind)


def refusal(thing: Any, *, in_parts: bool, per_rank: bool) -> str:
    """Return why the state of ``thing``, which `is_in_parts` or not, cannot be registered so; empty: it can."""
    old = getattr(sys.modules.get(_FSDP1), "FullyShardedDataParallel", None)
    if (
        old is not None
        and isinstance(thing, torch.nn.Module)
        and any(isinstance(part, old) for part in thing.modules())
    ):
        return "the state of FullyShardedDataParallel is saved with run.save_dir() (docs/scripts.md); that of fully_shard can be registered"
    if per_rank and in_parts:
        return "it holds DTensors, which are gathered from all ranks: register it without per_rank"
    return ""


def gather_parts(state: Any, *, keep: bool) -> Any:
    """Return ``state`` with whole tensors in host memory in place of DTensors; nothing but its form where ``keep`` is false.

    Every rank must call it, with states of the same form: the ranks exchange one tensor after the other. Raises CheckpointError
    without a process group.
    """
    if not torch.distributed.is_initialized():
        raise CheckpointError(
            "the process group was destroyed before the state that the ranks have parts of was gathered; leave it to the end of "
            "the process, or loop over run.steps(n)"
        )
    kind = _dtensor()

    def whole(leaf: Any, _: Any) -> Any:
        if kind is None or not isinstance(leaf, kind):
            return leaf
        full = leaf.detach().full_tensor()  # of a tensor that is not divided it is that tensor itself
        return full.to("cpu", copy=True) if keep else None

    return map_leaves(state, whole)


def divide(state: Any, thing: Any) -> Any:
    """Return ``state``, of whole tensors, with this rank's DTensors in their places, as ``thing`` holds them.

    Raises CheckpointError for a state that an older version saved: it has the part of rank 0 alone.
    """
    kind = _dtensor()
    if kind is None:
        return state
    models = _of_optimizer(thing) if isinstance(thing, torch.optim.Optimizer) else _by_path(thing.state_dict(), kind)

    def part(leaf: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(leaf, kind):
            raise CheckpointError("it holds the part of rank 0 alone: an older version saved it", lasting=True)
        model = models[path] if path in models else models.get(path[:-1])
        if not isinstance(leaf, torch.Tensor) or not isinstance(model, kind) or leaf.shape != model.shape:
            return leaf  # a number, or an optimizer's count of steps
        return _divided(leaf.to(model.device), model)

    return map_leaves(state, part)


def _divided(whole: torch.Tensor, model: Any) -> Any:
    """Return this rank's part of ``whole``, divided as ``model`` is; no rank needs another for it where torch allows that."""
    distribute = _tensors().distribute_tensor
    own = {"src_data_rank": None} if "src_data_rank" in inspect.signature(distribute).parameters else {}
    return distribute(whole, model.device_mesh, model.placements, **own)


def _tensors() -> Any:
    """Return torch's module of DTensors where it has been imported."""
    return next((found for name in _MODULES if (found := sys.modules.get(name)) and hasattr(found, "DTensor")), None)


def _dtensor() -> Any:
    return getattr(_tensors(), "DTensor", None)


def _parameters(optimizer: torch.optim.Optimizer) -> list[Any]:
    groups = getattr(optimizer, "param_groups", ())  # a class of the user's may lack them: that is told by others
    return [value for group in groups for value in group["params"]]


def _of_optimizer(optimizer: torch.optim.Optimizer) -> dict[tuple[Any, ...], Any]:
    """The parameter of each entry of ``state``: before its first step an optimizer has nothing else that shows how to divide."""
    return {("state", number): value for number, value in enumerate(_parameters(optimizer))}


def _by_path(state: Any, kind: Any) -> dict[tuple[Any, ...], Any]:
    found: dict[tuple[Any, ...], Any] = {}

    def note(leaf: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(leaf, kind):
            found[path] = leaf
        return leaf

    map_leaves(state, note)
    return found
