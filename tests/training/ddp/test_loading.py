"""How long a process waits for data: torch's loaders and the launcher's own reading, on the main thread."""

from __future__ import annotations

import threading
import time
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_jobs import Noisy
from torch.utils.data import DataLoader, Dataset, Subset

from launcher.training.ddp import data, loading
from launcher.training.ddp.loading import LOADING


class Four(Dataset[torch.Tensor]):
    """Four samples."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is a second on at each look: whoever waits for data looks twice, however long it takes."""
    tick = count().__next__
    monkeypatch.setattr(loading, "time", SimpleNamespace(perf_counter=tick))
    monkeypatch.setattr(data, "perf_counter", tick)
    monkeypatch.setattr(LOADING, "seconds", 0.0)


def waited(what: Any) -> float:
    """Seconds that ``what`` waited for data."""
    LOADING.watch_loaders()
    before = LOADING.seconds
    what()
    return LOADING.seconds - before


@pytest.mark.usefixtures("ticks")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_is_waited_for_counts(workers: int) -> None:
    """In this process or in loader workers: four batches, and the look that finds no more."""
    assert waited(lambda: list(DataLoader(Four(), num_workers=workers))) == 4 + 1


def test_time_is_counted_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a real clock: four samples of 20 ms are waited for, and no longer than all of it took."""
    monkeypatch.setattr(Four, "__getitem__", lambda _, index: time.sleep(0.02) or torch.tensor(index))
    began = time.perf_counter()
    seconds = waited(lambda: list(DataLoader(Four())))

    assert 0.079 <= seconds <= time.perf_counter() - began


@pytest.mark.usefixtures("ticks")
def test_the_launchers_own_reading_counts_once() -> None:
    """`Worker.batches` without loader workers reads a batch itself: four of one sample."""
    plan = data.Plan(length=4, global_batch=1, batch_size=1, accumulate=1, elastic_micros=False, rank=0, world_size=1, seed=0,
                     shuffle=False, drop_last=False)  # fmt: skip

    def read() -> None:
        for _, pairs in data.load_units(lambda: plan.units(0, 0, 1), Four(), torch.device("cpu"), None, 0, 0):
            list(pairs)

    assert waited(read) == 4


def test_a_thread_that_reads_ahead_keeps_nobody_waiting() -> None:
    """Only the main thread's time counts."""

    def ahead() -> None:
        thread = threading.Thread(target=lambda: list(DataLoader(Four())))
        thread.start()
        thread.join()

    assert waited(ahead) == 0.0


class _Pinning(torch.Tensor):
    """Memory of a CPU, for which no driver is needed to pin it."""

    def pin_memory(self, *_: Any) -> torch.Tensor:
        return torch.ones(1)


@pytest.mark.parametrize(
    ("numbers", "device", "pinned"),
    [(20_000, "cuda", True), (16_384, "cuda", False), (20_000, "cpu", False)],
    ids=["large", "64 KB", "for a CPU"],
)
def test_a_gpu_reads_large_batches_from_pinned_memory(numbers: int, device: str, pinned: bool) -> None:
    """From other memory the host would wait until the GPU has done all it was given; up to 64 KB it does not."""
    tensor = torch.zeros(numbers).as_subclass(_Pinning)

    assert (data._pinned(tensor, torch.device(device)) is not tensor) is pinned


def test_sparse_tensors_are_given_as_they_are() -> None:
    """They cannot be pinned."""
    tensor = torch.zeros(20_000, 1).to_sparse()

    assert data._pinned(tensor, torch.device("cuda")) is tensor


class Drawn(Dataset[Any]):
    """Reads a batch at once: of each sample its number, the size of the batch and a random number."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError

    def __getitems__(self, indices: list[int]) -> Any:
        return [(index, len(indices), torch.rand(())) for index in indices]


def read(dataset: Any, num_workers: int, *, start: int = 0, batch: int = 4) -> list[list[Any]]:
    """What so many loader processes read of epoch 0 from ``start`` on, sample by sample."""
    plan = data.Plan(length=8, global_batch=batch, batch_size=batch)
    units = data.load_units(lambda: plan.units(0, start, 1), dataset, torch.device("cpu"), None, 5, num_workers)
    return [
        [value.tolist() for value in sample]
        for _, pairs in units
        for _, columns in pairs
        for sample in zip(*columns, strict=True)
    ]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("dataset", [Drawn(), Subset(Drawn(), range(8))], ids=["whole", "subset"])
def test_loader_processes_read_a_batch_by_one_call(dataset: Any) -> None:
    """``__getitems__`` is called as torch's own loaders call it; its random numbers do not depend on processes or a resume."""
    samples = read(dataset, 1)

    assert sorted(index for index, _, _ in samples) == list(range(8))
    assert {size for _, size, _ in samples} == {4}
    assert len({drawn for _, _, drawn in samples}) == 8
    assert read(dataset, 3) == samples
    assert read(dataset, 2, start=4) == samples[4:]


def test_a_subset_of_single_reads_is_seeded_by_sample() -> None:
    """torch gives every Subset a ``__getitems__``; what is behind it decides: batches of another size hold the same samples."""
    dataset = Subset(Noisy(8), range(8))

    assert read(dataset, 1, batch=2) == read(dataset, 1, batch=4) == read(Noisy(8), 1, batch=4)
