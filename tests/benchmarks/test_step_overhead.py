"""The benchmark of a step's cost: what it counts as a wait for the device."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, which is run by path."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    yield importlib.import_module("step_overhead")
    del sys.modules["step_overhead"]


class Trace:
    """A profiler that is told what CUDA is asked to do."""

    open: ClassVar[list[Trace]] = []

    def __init__(self) -> None:
        self.asked: list[Any] = []
        Trace.open.append(self)

    def stop(self) -> None:
        """Note no more."""
        Trace.open.remove(self)

    def events(self) -> list[Any]:
        """What was noted."""
        return self.asked


@pytest.mark.parametrize("ours", [0, 3])
def test_only_the_waits_of_the_steps_are_counted(bench: Any, monkeypatch: pytest.MonkeyPatch, ours: int) -> None:
    """The benchmark waits for the device itself, to read the clock: that is in neither trace."""

    def asks(name: str) -> None:
        for trace in Trace.open:
            trace.asked.append(types.SimpleNamespace(name=name))

    def now(device: torch.device) -> float:
        asks("cudaDeviceSynchronize")
        return 0.0

    monkeypatch.setattr(bench, "now", now)
    monkeypatch.setattr(bench, "begin_trace", Trace)
    size = bench.Size(ranks=1, pairs=20, block=1, gpus=True)
    plain = types.SimpleNamespace(device=torch.device("cpu"), run=lambda steps: asks("cudaMemcpyAsync"))
    turns = bench.Turns(size, plain, types.SimpleNamespace(_progress_at=0.0, _metrics_at=0.0))
    for _ in range(6):
        turns.take_turns()
        for _ in range(ours):
            asks("cudaStreamSynchronize")

    assert turns.waits == {"ours": ours, "plain": 0}
