"""Large states are written by several ranks, each a share: what all ranks hold alike, bit for bit.

These are the parameters that DistributedDataParallel keeps equal, and what an optimizer of torch's keeps for each of them. All else
is written by rank 0: buffers, schedulers and objects of the user's own may differ between ranks. A rank's share is in its own file;
`write.SHARED` names it where the tensor would be (`plain.Elsewhere`), so that any number of ranks can read the whole.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import heapq
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.optim import Optimizer

from launcher.run.worker_texts import NOT_ALIKE
from launcher.training.checkpoint.plain import Elsewhere, is_stand_in, like, map_leaves
from launcher.training.ddp.wrapping import alike_parameters
from launcher.training.process.group import round_store
from launcher.training.process.place import WorkerPlace

SHARE_BYTES = 2**28
"""The least that is worth a share: a disk writes it in a fraction of a second."""
_MOST = 64
"""Shares of a checkpoint: at a resume every rank opens the file of each."""
_WAIT_S = 10.0
"""Ranks that train together come to a save within moments of each other."""
_CLOSED = "shares/closed"


class Shares:
    """Which rank writes which tensor of the registered state at the present step.

    The others tell rank 0 which share they write, and a checksum of what they hold, through the round's store; rank 0 waits for them, and
    writes everything itself where one differs or does not come. So no rank can be left waiting in a collective.
    """

    def __init__(self, place: WorkerPlace, warn: Callable[[str], None]) -> None:
        self._place, self._rank, self._warn = place, place.rank, warn
        self._step = -1
        self._tensors: list[torch.Tensor] = []
        self._owners: list[int] = []
        self._closed = False

    def deal(self, step: int, things: dict[str, Any]) -> None:
        """Deal what ``things`` hold alike at ``step``, where it is large; a second call at a step changes nothing."""
        if step == self._step:
            return
        self._step, self._tensors, self._owners = step, [], []
        ranks = self._place.world_size
        if self._closed or ranks == 1 or self._place.paths is None:
            return
        tensors = list(_alike(things, ranks))
        sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
        count = min(ranks, _MOST, -(-sum(sizes) // SHARE_BYTES))
        if count < 2:
            return
        owners = [number * ranks // count for number in dealt(sizes, count)]
        told = f"{self._place.tmp(step).name} {_checksum(tensors)}"
        try:
            agreed = self._agree(told, sorted({*owners} - {0}))
        except RuntimeError:  # torch's own, of a store that cannot be reached
            agreed = False
        if agreed:
            self._tensors, self._owners = tensors, owners

    def _agree(self, told: str, others: list[int]) -> bool:
        store = self._store
        if self._rank != 0:
            self._closed = store.check([_CLOSED])
            if self._closed or self._rank not in others:
                return False
            store.set(f"shares/{self._rank}", told)
            return True
        names, end, found = [f"shares/{rank}" for rank in others], time.monotonic() + _WAIT_S, [b""]
        with contextlib.suppress(dist.DistStoreError):
            store.wait(names, datetime.timedelta(seconds=_WAIT_S))
            while not all(map(_of_this_save(told), found)) and time.monotonic() < end:
                found = store.multi_get(names)
        if {*found} == {told.encode()}:
            return True
        self._closed = True
        store.set(_CLOSED, "1")
        if all(map(_of_this_save(told), found)):
            self._warn(NOT_ALIKE)
        return False

    @functools.cached_property
    def _store(self) -> PrefixStore:
        return PrefixStore("launcher", round_store(datetime.timedelta(seconds=_WAIT_S)))

    @property
    def own(self) -> dict[int, torch.Tensor]:
        """This rank's share by number; rank 0 has its own where it belongs."""
        if self._rank == 0:
            return {}
        pairs = enumerate(zip(self._owners, self._tensors, strict=True))
        return {number: tensor.detach() for number, (owner, tensor) in pairs if owner == self._rank}

    def taken_out(self, objects: Any) -> Any:
        """Return the state of rank 0 without what others write."""
        pairs = enumerate(zip(self._owners, self._tensors, strict=True))
        others = {_identity(tensor): Elsewhere(owner, number) for number, (owner, tensor) in pairs if owner}
        if not others:
            return objects
        return map_leaves(objects, lambda leaf, _: others.get(_identity(leaf), leaf) if _is_plain(leaf) else leaf)

    def __bool__(self) -> bool:
        """Whether anything is dealt at the present step."""
        return bool(self._tensors)


def put_back(node: Any, share: Callable[[int], dict[int, Any]]) -> Any:
    """Return the state that `Shares.taken_out` was given; ``share`` gives a rank's own. Raises KeyError where one lacks a tensor."""
    if is_stand_in(node):
        return share(node["value"][0])[node["value"][1]] if node["type"] == Elsewhere.__name__ else node
    if isinstance(node, dict):
        return like(node, {key: put_back(value, share) for key, value in node.items()})
    if type(node) in (list, tuple):
        return type(node)(put_back(value, share) for value in node)
    return node


def dealt(sizes: list[int], count: int) -> list[int]:
    """Return for each size one of ``count`` heaps, of nearly the same weight: the largest goes first, to the lightest."""
    heaps = [(0, number) for number in range(count)]
    owners = [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
        weight, lightest = heaps[0]
        heapq.heapreplace(heaps, (weight + sizes[number], lightest))
        owners[number] = lightest
    return owners


def _alike(things: dict[str, Any], world_size: int) -> Iterator[torch.Tensor]:
    """Yield each tensor once, in an order that is the same on every rank."""
    equal, seen = alike_parameters(world_size), set[Any]()
    for name in sorted(things):
        for tensor in _held(things[name], equal):
            if _can_be_dealt(tensor) and _identity(tensor) not in seen:
                seen.add(_identity(tensor))
                yield tensor


def _held(thing: Any, equal: set[int]) -> Iterator[torch.Tensor]:
    if isinstance(thing, torch.nn.Module):
        yield from (parameter for parameter in thing.parameters() if id(parameter) in equal)
    elif isinstance(thing, Optimizer) and type(thing).state_dict is Optimizer.state_dict:
        for parameter in (one for group in thing.param_groups for one in group["params"] if id(one) in equal):
            state = thing.state.get(parameter, {})
            yield from (
                state[key] for key in sorted(state, key=str) if getattr(state[key], "shape", None) == parameter.shape
            )


def _can_be_dealt(tensor: torch.Tensor) -> bool:
    if not _is_plain(tensor) or not tensor.is_floating_point() or tensor.numel() == 0:
        return False
    # A view would be written with all the memory that it is a part of.
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def _is_plain(leaf: Any) -> bool:
    return type(leaf) in (torch.Tensor, torch.nn.Parameter) and leaf.layout == torch.strided


def _identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _checksum(tensors: list[torch.Tensor]) -> int:
    """Return a checksum of the tensors' shapes and of one number of each: where training differs, nearly all numbers do."""
    samples: dict[Any, list[torch.Tensor]] = {}
    for tensor in tensors:
        middle = tensor.detach()[tuple(side // 2 for side in tensor.shape)]
        samples.setdefault((tensor.dtype, tensor.device.type), []).append(middle)
    numbers = [torch.stack(alike).double().tolist() for alike in samples.values()]
    return zlib.crc32(repr([[(tuple(t.shape), t.dtype) for t in tensors], numbers]).encode())


def _of_this_save(told: str) -> Callable[[bytes], bool]:
    """Return what tells whether another rank speaks of the same save."""
    return lambda other: other.split()[:1] == told.encode().split()[:1]
