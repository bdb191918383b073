"""Averages and sums over ranks: in double precision, as the docstrings promise."""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

import pytest
import torch
from looping_jobs import Task
from small_jobs import Noisy, numbers
from torch.utils.data import Dataset, TensorDataset

from launcher.errors import CodeError
from launcher.training import evaluation
from launcher.training.loop import run_task
from launcher.training.process.place import WorkerPlace
from launcher.training.step.session import Session
from launcher.training.step.stopping import Gate, StopTraining
from launcher.training.worker import Worker

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
"""More processes than this machine has CPUs."""


@pytest.fixture
def worker() -> Worker:
    """The only rank, outside a run."""
    return Worker(Session(WorkerPlace(), Gate(), torch.device("cpu")))


def test_plain_numbers_are_summed_in_double_precision(worker: Worker) -> None:
    """A Python float has 53 bits: it does not come back with the 24 of torch's default type."""
    assert worker.gather_sum(loss=0.1, count=2**24 + 1) == {"loss": 0.1, "count": 2**24 + 1}
    assert worker.all_reduce_mean(2**24 + 1) == 2**24 + 1
    assert worker.evaluate(torch.nn.Linear(1, 1), [0, 0], 2, lambda *_: {"hits": 0.1}) == {"hits": 0.1}


def test_the_number_of_samples_is_exact(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of more than 2**24 samples is counted to the last one."""
    many = 2**24 + 1
    sums = {"hits": torch.tensor(many, dtype=torch.float64)}
    monkeypatch.setattr(evaluation, "_share", lambda *_: (sums, many))
    assert worker.evaluate(torch.nn.Linear(1, 1), [0], 1, lambda *_: {}) == {"hits": 1.0}


def test_batches_count_the_steps_themselves(worker: Worker) -> None:
    """A step reported inside would count twice, and a save there would have a position that its samples do not match."""
    data = TensorDataset(torch.arange(8.0))
    batches = worker.batches(data, 2, epochs=1)
    next(batches)
    with pytest.raises(CodeError, match=r"counts the steps itself; log numbers with log\(\)"):
        worker.step(loss=1.0)

    assert worker.steps_done == 0


class Readers(Dataset[torch.Tensor]):
    """Six samples: the process that reads each."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(os.getpid())


def averages(worker: Worker, data: Any, num_workers: int) -> dict[str, float]:
    """What an evaluation by so many loader processes returns."""
    results = worker.evaluate(
        torch.nn.Identity(), data, 4, lambda _, batch: {"mean": batch[0].double().mean()}, num_workers=num_workers
    )
    assert multiprocessing.active_children() == []
    return results


def test_loader_processes_change_no_result_of_an_evaluation(worker: Worker) -> None:
    """To the last bit what this process reads itself, in batches of which the last is short; then the processes are gone."""
    assert averages(worker, numbers(33), 3) == averages(worker, numbers(33), 0)


def test_random_samples_do_not_depend_on_the_number_of_loader_processes(worker: Worker) -> None:
    """The numbers drawn for a sample come from the seed, the step and its index; training's are left as they were."""
    before = torch.get_rng_state()

    assert averages(worker, Noisy(33), 1) == averages(worker, Noisy(33), 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_abandoned_evaluation_ends_its_loader_processes(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop of all ranks comes during the second batch: no third is measured, and no process is left."""
    measured: list[Any] = []
    monkeypatch.setattr(Session, "must_leave", property(lambda _: len(measured) == 2))

    with pytest.raises(StopTraining):
        worker.evaluate(torch.nn.Identity(), numbers(33), 4, lambda *_: measured.append(0) or {"x": 0}, num_workers=2)

    assert len(measured) == 2
    assert multiprocessing.active_children() == []


def test_a_task_is_evaluated_by_its_loader_processes(worker: Worker) -> None:
    """``num_workers`` holds for the test data, too: else a GPU would wait for one process in every evaluation."""
    readers: set[int] = set()

    def metrics(_: Any, batch: Any) -> dict[str, Any]:
        readers.update(batch.tolist())
        return {"loss": 0.0}

    task = Task(num_workers=2, test_batch_size=1, test_data=Readers, metrics=metrics)
    run_task(worker, worker._session, task)

    assert len(readers) == 2
    assert os.getpid() not in readers


@pytest.mark.parametrize(
    ("batch_size", "accumulate", "said"),
    [(0, None, "batch_size"), (-4, None, "batch_size"), (4, 0, "accumulate"), (4, -1, "accumulate")],
)
def test_batches_of_nothing_are_refused(worker: Worker, batch_size: int, accumulate: int | None, said: str) -> None:
    """Before a sample is read: a division by zero, or indices that are none, would not say what is wrong."""
    with pytest.raises(CodeError, match=rf"^{said} must be a whole number of at least 1, not -?\d$"):
        next(worker.batches(numbers(12), batch_size, accumulate=accumulate))


@pytest.mark.parametrize(
    ("samples", "batch_size", "said"),
    [
        (0, 4, "the data set has no samples to evaluate"),
        (12, 0, "batch_size must be a whole number of at least 1, not 0"),
        (12, -4, "batch_size must be a whole number of at least 1, not -4"),
    ],
)
def test_an_evaluation_of_nothing_is_refused(worker: Worker, samples: int, batch_size: int, said: str) -> None:
    """It would have no result: an empty data set has no sample to measure, and batches below 1 would skip all."""
    with pytest.raises(CodeError, match=f"^{said}$"):
        worker.evaluate(torch.nn.Identity(), numbers(samples), batch_size, lambda *_: {"x": 0})
