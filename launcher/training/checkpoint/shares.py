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
import operator
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.optim import Optimizer

from launcher.frozen import frozen
from launcher.run.worker_texts import NOT_ALIKE, NOT_TOGETHER
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
_POLL_S = 0.002
_MOST_LATE = 3
_CLOSED = "shares/closed"
_SAMPLES = 64
"""Numbers of each tensor that are compared."""


class Shares:
    """Finds out at each save which rank writes which tensor.

    The others tell rank 0 which share they write, and a checksum of what they hold, through the round's store; rank 0 waits for them, and
    writes everything itself where one differs or does not come. So no rank can be left waiting in a collective.
    """

    def __init__(self, place: WorkerPlace, warn: Callable[[str], None]) -> None:
        self._place, self._rank, self._warn = place, place.rank, warn
        self._late = 0
        """Saves in a row for which a rank came late."""
        self._closed = False
        self._promised = False
        """At this save rank 0 may count on this rank's share."""

    def deal(self, step: int, things: dict[str, Any]) -> Dealt | None:
        """Deal what ``things`` hold alike at ``step``; None where it is small, or this rank has nothing to do with it."""
        if self._closed or self._place.world_size == 1 or self._place.paths is None:
            return None
        self._promised = False
        try:
            return self._dealt(self._place.tmp(step).name, list(_alike(things, self._place.world_size)))
        except Exception:  # of any kind, of torch, of an optimizer or of a signal's handler
            self._closed = True
            if self._promised:  # a checkpoint without it could not be loaded
                raise
            return None  # no save fails for what makes it quicker alone

    def _dealt(self, save: str, tensors: list[torch.Tensor]) -> Dealt | None:
        ranks = self._place.world_size
        sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
        count = min(ranks, _MOST, len(tensors), -(-sum(sizes) // SHARE_BYTES))
        if count < 2:
            return None
        owners = [number * ranks // count for number in dealt(sizes, count)]
        if self._rank not in owners:
            return None
        told = f"{save} {_checksum(tensors)}"
        agreed = self._tell(told) if self._rank else self._hear(told, save, sorted({*owners} - {0}))
        return Dealt(self._rank, tensors, owners) if agreed else None

    def _tell(self, told: str) -> bool:
        self._closed = self._store.check([_CLOSED])
        if not self._closed:
            self._promised = True
            self._store.set(f"shares/{self._rank}", told)
        return not self._closed

    def _hear(self, told: str, save: str, others: list[int]) -> bool:
        names, end = [f"shares/{rank}" for rank in others], time.monotonic() + _WAIT_S
        heard = [""]
        with contextlib.suppress(dist.DistStoreError):
            self._store.wait(names, datetime.timedelta(seconds=_WAIT_S))
            while not all(text.startswith(f"{save} ") for text in heard) and time.monotonic() < end:
                time.sleep(_POLL_S)
                heard = [value.decode() for value in self._store.multi_get(names)]
        if {*heard} == {told}:
            self._late = 0
            return True
        self._late += 1
        differ = all(text.startswith(f"{save} ") for text in heard)
        if differ or self._late == _MOST_LATE:
            self._closed = True
            self._store.set(_CLOSED, "1")
            self._warn(NOT_ALIKE if differ else NOT_TOGETHER)
        return False

    @functools.cached_property
    def _store(self) -> PrefixStore:
        return PrefixStore("launcher", round_store(datetime.timedelta(seconds=_WAIT_S)))


@frozen
class Dealt:
    """The shares of one save, as one of their writers sees them."""

    rank: int
    tensors: list[torch.Tensor]
    owners: list[int]
    """Of each tensor the rank that writes it."""

    @property
    def own(self) -> dict[int, torch.Tensor]:
        """This rank's share by number; rank 0 has its own where it belongs."""
        pairs = enumerate(zip(self.owners, self.tensors, strict=True))
        return {number: tensor.detach() for number, (owner, tensor) in pairs if owner == self.rank != 0}

    def taken_out(self, objects: Any) -> Any:
        """Return the state of rank 0 without what others write."""
        pairs = enumerate(zip(self.owners, self.tensors, strict=True))
        others = {_identity(tensor): Elsewhere(owner, number) for number, (owner, tensor) in pairs if owner}
        return map_leaves(objects, lambda leaf, _: others.get(_identity(leaf), leaf) if _is_plain(leaf) else leaf)


def put_back(node: Any, share: Callable[[int], dict[int, Any]]) -> Any:
    """Return the state that `Dealt.taken_out` was given; ``share`` gives a rank's own.

    Raises KeyError where that lacks a tensor, TypeError or ValueError where a file names no rank.
    """
    if is_stand_in(node):
        if node["type"] == Elsewhere.__name__:
            rank, number = node["value"]
            return share(operator.index(rank))[number]
        node["value"] = put_back(node["value"], share)
        return node
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
            state = thing.state.get(parameter)
            if not isinstance(state, dict):
                continue
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
    """Return a checksum of the tensors' shapes and of some numbers of each: where training differs, nearly all numbers do."""
    samples: dict[Any, list[torch.Tensor]] = {}
    for tensor in tensors:
        # In their order in memory: `_can_be_dealt` has seen that it holds nothing else.
        flat = torch.as_strided(tensor.detach(), (tensor.numel(),), (1,))
        samples.setdefault((tensor.dtype, tensor.device), []).append(flat[:: max(1, len(flat) // _SAMPLES)])
    value = zlib.crc32(repr([(tuple(tensor.shape), tensor.stride(), tensor.dtype) for tensor in tensors]).encode())
    for alike in samples.values():
        value = zlib.crc32(torch.cat(alike).cpu().view(torch.uint8).numpy().tobytes(), value)
    return value
