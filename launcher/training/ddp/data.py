"""Which samples belong to which optimizer step (unit), and which of them each rank takes.

One global permutation per epoch, from (seed, epoch) alone, and one global count of consumed samples: a resume is exact in
the middle of an epoch, and every sample is used once per epoch however often the number of ranks changes in between.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, default_collate

from launcher.errors import CodeError
from launcher.frozen import frozen
from launcher.training.ddp.loading import LOADING

Collate = Callable[[list[Any]], Any] | None
_AT_ONCE = 4096
"""Samples whose numbers are read from the order at once."""
_PASSED_ON_AT_ONCE = 65536
"""Bytes (CUDA, "API synchronization behavior": "a memory block of 64 KB or less")."""


def derive_seed(*parts: int) -> int:
    """Derive a 63-bit seed from whole numbers; the same on every machine, unrelated for neighbouring inputs (SplitMix64)."""
    value = 0x9E3779B97F4A7C15
    for part in parts:
        value = (value ^ (part & 0xFFFFFFFFFFFFFFFF)) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        value = (value ^ value >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        value ^= value >> 31
    return value >> 1


def split(total: int, parts: int, index: int) -> tuple[int, int]:
    """Return (start, size) of share ``index`` when ``total`` is split into ``parts`` shares whose sizes differ by at most one."""
    base, extra = divmod(total, parts)
    return index * base + min(index, extra), base + (index < extra)


class Micro(NamedTuple):
    """What one rank puts through the model at once."""

    indices: list[int]
    """Samples of the data set; one stand-in when the share is empty."""
    size: int
    """Samples that count: 0 for a stand-in."""
    weight: float
    """What this mean loss is multiplied by, so that DDP's average over ranks is the mean over the unit's samples."""


class Unit(NamedTuple):
    """One optimizer step: this rank's micro-batches, as many as every other rank has."""

    epoch: int
    start: int
    """Samples of the epoch consumed before it, over all ranks."""
    size: int
    """Samples of all ranks together."""
    micros: list[Micro]
    last: bool
    """Whether it ends its epoch."""


@frozen(kw_only=True)
class Plan:
    """The units of every epoch, as one rank sees them."""

    length: int
    global_batch: int
    batch_size: int
    """The most one rank puts through the model at once (with ``elastic_micros``)."""
    accumulate: int = 1
    elastic_micros: bool = True
    """Cut shares that outgrew ``batch_size`` (fewer ranks, same global batch) into more micro-batches."""
    rank: int = 0
    world_size: int = 1
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False

    @property
    def units_per_epoch(self) -> int:
        """Optimizer steps of one epoch."""
        whole = self.length // self.global_batch
        return whole if self.drop_last else math.ceil(self.length / self.global_batch)

    def end_of_epoch(self, start: int) -> int:
        """Samples of an epoch consumed when it ends, ``start`` of them in steps that may have had another size."""
        left = max(self.length - start, 0)
        return start + left - (left % self.global_batch if self.drop_last else 0)

    def order(self, epoch: int) -> torch.Tensor:
        """Return the epoch's permutation of all samples."""
        if not self.shuffle:
            return torch.arange(self.length)
        generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch))
        return torch.randperm(self.length, generator=generator)

    def units(self, epoch: int, start: int, end_epoch: int) -> Iterator[Unit]:
        """Yield every unit from ``start`` samples into ``epoch`` up to the end of ``end_epoch - 1``."""
        whole = self._shares(self.global_batch)
        while epoch < end_epoch:
            end = self.end_of_epoch(start)
            order = self.order(epoch) if start < end else None
            while order is not None and start < end:
                size = min(self.global_batch, end - start)
                shares = whole if size == self.global_batch else self._shares(size)
                for own in self._own_samples(order[start:end], size):
                    micros = [Micro(own[at : at + n] or [int(order[start])], n, weight) for at, n, weight in shares]
                    yield Unit(epoch, start, size, micros, start + size >= end)
                    start += size
            epoch, start = epoch + 1, 0

    def _shares(self, size: int) -> list[tuple[int, int, float]]:
        """Return this rank's micro-batches of a unit of so many samples: first and number among its own, and weight."""
        _, share = split(size, self.world_size, self.rank)
        count = self.accumulate
        if self.elastic_micros:  # a short last batch needs no more micro-batches than its samples fill
            least = self.accumulate if size == self.global_batch else 1
            count = max(least, math.ceil(math.ceil(size / self.world_size) / self.batch_size))
        shares = []
        for first, n in (split(share, count, j) for j in range(count)):
            scaled = n * self.world_size
            shares.append((first, n, 1.0 if scaled == size else scaled / size))
        return shares

    def _own_samples(self, order: torch.Tensor, size: int) -> list[list[int]]:
        """Return this rank's samples in the next units of one ``size``, of several at once: each call of torch costs microseconds."""
        first, n = split(size, self.world_size, self.rank)
        count = max(1, min(len(order) // size, _AT_ONCE // max(n, 1)))
        own: list[list[int]] = order[: count * size].view(count, size)[:, first : first + n].tolist()
        return own


def load_units(
    units: Callable[[], Iterator[Unit]],
    dataset: Any,
    device: torch.device,
    collate: Collate,
    seed: int,
    num_workers: int,
) -> Generator[tuple[Unit, Iterator[tuple[Micro, Any]]], None, None]:
    """Yield (unit, its (micro, data) pairs) with data on the device; loader processes, if any, read ahead.

    The pairs must be consumed before the next unit is asked for.
    """

    def pairs(unit: Unit) -> Iterator[tuple[Micro, Any]]:
        for micro in unit.micros:
            if loaded is not None:
                data = next(loaded)
            else:
                began = perf_counter()
                data = fetch(dataset, micro.indices, collate)
                LOADING.seconds += perf_counter() - began
            yield micro, data if on_cpu else to_device(data, device)

    on_cpu = device.type == "cpu"
    loaded: Iterator[Any] | None = None
    if num_workers:
        keys: Any = ([(seed, unit.epoch, i) for i in micro.indices] for unit in units() for micro in unit.micros)
        loader: DataLoader[Any] = DataLoader(
            _Seeded(dataset),
            batch_sampler=keys,
            collate_fn=collate,
            num_workers=num_workers,
            pin_memory=device.type == "cuda",
            # A generator of its own: torch would draw the workers' base seed from the global one, once more at every resume.
            generator=torch.Generator().manual_seed(0),
        )
        loaded = iter(loader)
    try:
        for unit in units():
            yield unit, pairs(unit)
    finally:
        loaded = None  # ends the loader's processes


def check_dataset(dataset: Any) -> None:
    """Raise CodeError when ``dataset`` cannot be read by index."""
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise CodeError(
            f"data set {type(dataset).__name__} has no length and index access (__len__, __getitem__): "
            "an exact resume needs both; loop over it in a script with launcher.attach() instead"
        )


def check_positive(name: str, size: int) -> None:
    """Raise CodeError when a number of samples or batches is none."""
    if size < 1:
        raise CodeError(f"{name} must be a whole number of at least 1, not {size}")


def fetch(dataset: Any, indices: list[int], collate: Collate = None) -> Any:
    """Read one batch, in this process."""
    if collate is None and type(dataset) is TensorDataset:
        # Equal to collating sample by sample, without a Python call per sample.
        where = torch.tensor(indices)
        return [tensor[where] for tensor in dataset.tensors]
    samples = dataset.__getitems__(indices) if hasattr(dataset, "__getitems__") else [dataset[i] for i in indices]
    return (collate or default_collate)(samples)


def to_device(data: Any, device: torch.device) -> Any:
    """Return ``data`` with every tensor in it on ``device``."""
    if isinstance(data, torch.Tensor):
        return data if data.device == device else _pinned(data, device).to(device, non_blocking=True)
    if callable(to := getattr(data, "to", None)):  # a PackedSequence, a BatchEncoding
        return to(device)
    if isinstance(data, Mapping):
        return {key: to_device(value, device) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(to_device(value, device) for value in data))
    if isinstance(data, list | tuple):
        return type(data)(to_device(value, device) for value in data)
    return data


def _pinned(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a copy in memory that a GPU reads by itself; torch uses it again once that is done.

    For other memory the host waits until the GPU has done all it was given (docs/gpu.md; CUDA, "API synchronization behavior": "the
    driver may synchronize with the stream"). What is small is passed on at once, and quicker than through a copy.
    """
    if device.type != "cuda" or not tensor.is_cpu or tensor.layout != torch.strided:
        return tensor
    return tensor.pin_memory() if tensor.numel() * tensor.element_size() > _PASSED_ON_AT_ONCE else tensor


class _Seeded(torch.utils.data.Dataset[Any]):
    """The data set in loader processes: each sample's randomness comes from (seed, epoch, index), so nothing needs saving.

    A data set of its own ``__getitems__`` reads a batch at once, whose randomness comes from its first sample: on another number of ranks
    the batches are others, and so are the random numbers of a sample.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = inner = dataset
        while type(inner) is Subset:  # it has the method whatever it is a part of
            inner = inner.dataset
        self._reads_batches = hasattr(inner, "__getitems__")

    def __getitems__(self, keys: list[tuple[int, int, int]]) -> Any:
        if not self._reads_batches:
            return [self._seeded(key)[key[2]] for key in keys]
        return self._seeded(keys[0]).__getitems__([index for _, _, index in keys])

    def _seeded(self, key: tuple[int, int, int]) -> Any:
        seed = derive_seed(*key)
        random.seed(seed)
        torch.default_generator.manual_seed(seed)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(seed & 0xFFFFFFFF)
        return self.dataset
