"""Metrics that are not finite: the very step, on every rank, once, and without waiting for a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crew import Crew, make_spec

from launcher.run.messages import WorkerNotFinite
from launcher.run.spec import CheckpointSpec
from launcher.training.process import not_finite
from launcher.training.process.not_finite import NotFiniteWatch

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the CPU are treated as those of a device."""
    monkeypatch.setattr(not_finite, "on_device", lambda value: isinstance(value, torch.Tensor))


def told(*values: Any, metric: str = "loss", tensors: bool = False, looks: int = 10**9) -> list[WorkerNotFinite]:
    """What is told of these values, a step each from 1; every ``looks`` steps what has arrived is examined."""
    sent: list[WorkerNotFinite] = []
    watch = NotFiniteWatch(sent.append)
    for step, value in enumerate(values, 1):
        watch.see(step, metric, torch.tensor(value) if tensors else value)
        if step % looks == 0:
            watch.look()
    watch.look(wait=True)
    return sent


@pytest.mark.parametrize("tensors", [False, True, "device"])
def test_the_first_step_is_told_and_the_one_at_which_it_is_well_again(
    tensors: bool | str, request: pytest.FixtureRequest
) -> None:
    """Two messages, however long it lasts; the step is that of the value, not that of the look."""
    if tensors == "device":
        request.getfixturevalue("device")
    sent = told(0.5, 0.4, NAN, NAN, NAN, 0.3, 0.2, tensors=bool(tensors))

    assert [(m.step, m.value, m.until) for m in sent] == [(3, "nan", None), (3, "nan", 6)]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("looks", [1, 7, 10**9])
def test_nothing_is_lost_between_two_looks(looks: int) -> None:
    """A single NaN among hundreds of steps."""
    (first, again) = told(*[1.0] * 400, -INF, *[1.0] * 400, tensors=True, looks=looks)

    assert (first.step, first.value, again.until) == (401, "-inf", 402)


@pytest.mark.usefixtures("device")
def test_of_more_values_than_are_kept_the_newest_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory on the device is bounded."""
    monkeypatch.setattr(not_finite, "_KEPT", 8)

    assert [m.step for m in told(*[1.0] * 20, NAN, 1.0, tensors=True)] == [21, 21]
    assert told(NAN, *[1.0] * 20, tensors=True) == []


def test_a_best_value_that_begins_infinite_is_no_alarm() -> None:
    """``best=inf`` until the first evaluation is meant so; a loss never is."""
    assert told(INF, INF, 0.5, metric="best") == []
    assert [m.value for m in told(INF, metric="train_loss")] == ["inf"]
    assert [m.step for m in told(1.0, NAN, metric="grad_norm")] == [2]


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.longdouble])
def test_numbers_of_numpy_are_numbers(kind: Any) -> None:
    """Only float64 is a Python float."""
    assert [(m.step, m.value) for m in told(kind(1.0), kind("nan"))] == [(2, "nan")]


@pytest.mark.usefixtures("device")
def test_large_and_odd_values_are_well() -> None:
    """1e300 is finite in double precision; what is no number, or many, is not looked at."""
    assert told(1e300, -3.0, 0, tensors=False) == []
    sent: list[WorkerNotFinite] = []
    watch = NotFiniteWatch(sent.append)
    watch.see(1, "loss", "nan")
    watch.see(1, "losses", torch.tensor([NAN, 1.0]))
    watch.see(1, "loss64", torch.tensor(1e300, dtype=torch.float64))
    watch.look(wait=True)
    assert sent == []
    watch.see(2, "loss", torch.tensor([NAN]))
    watch.look(wait=True)
    assert [m.step for m in sent] == [2]


def test_a_metric_that_comes_and_goes_does_not_fill_the_history() -> None:
    """Twenty messages in a round."""
    assert len(told(*[NAN, 1.0] * 100)) == 20


@pytest.mark.usefixtures("device")
def test_a_metric_of_inference_mode_can_be_watched_on() -> None:
    """A tensor made there may not be written to outside: the values are kept in an ordinary one."""
    sent: list[WorkerNotFinite] = []
    watch = NotFiniteWatch(sent.append)
    with torch.inference_mode():
        watch.see(1, "loss", torch.tensor(1.0))
    watch.see(2, "loss", torch.tensor(NAN, requires_grad=True) * 2)
    watch.look(wait=True)
    assert [m.step for m in sent] == [2]


class Late:
    """A device's event that has come only when it is waited for, or asked a second time."""

    def __init__(self) -> None:
        self.asked = 0

    def record(self) -> None:
        """A copy begins."""
        self.asked = 0

    def query(self) -> bool:
        """Not yet."""
        self.asked += 1
        return self.asked > 1

    def synchronize(self) -> None:
        """Now."""
        self.asked = 1


def test_a_device_that_copies_late_loses_nothing_and_mixes_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values go on to be put while a copy is on its way; those of the copy keep their own steps."""
    monkeypatch.setattr(not_finite, "_KEPT", 8)
    ring = not_finite._Ring(torch.device("cpu"))
    ring._arrived, ring._host = Late(), torch.zeros(8, dtype=torch.float64)  # type: ignore[assignment]
    got: list[tuple[int, float]] = []
    for step in range(1, 31):
        ring.put(step, torch.tensor(float(step)))
        if step % 3 == 0:
            got += ring.take(wait=False)
    got += ring.take(wait=True)

    assert all(value == step for step, value in got)
    assert [step for step, _ in got] == list(range(1, 31))


def test_of_real_workers_the_one_with_the_first_nan_says_the_lowest_step(tmp_path: Path) -> None:
    """A micro-batch that is not logged, of rank 1 in step 2; a step later every rank's loss is NaN."""
    spec = make_spec(
        tmp_path / "run", "small_jobs:Poisoned", 2, kind="task", params={"at": 1, "accumulate": 2, "epochs": 1},
        checkpoint=CheckpointSpec(enabled=False),
    )  # fmt: skip
    told: dict[int, int] = {}

    def heard(rank: int, message: dict[str, Any]) -> bool:
        if message["type"] == "not_finite":
            told.setdefault(rank, message["step"])
        return len(told) == 2

    with Crew(spec, 2) as crew:
        crew.until(heard)

    assert told == {1: 2, 0: 3}
