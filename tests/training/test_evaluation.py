"""Averages and sums over ranks: in double precision, as the docstrings promise."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import TensorDataset

from launcher.errors import CodeError
from launcher.training import evaluation
from launcher.training.process.place import WorkerPlace
from launcher.training.step.session import Session
from launcher.training.step.stopping import Gate
from launcher.training.worker import Worker


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
