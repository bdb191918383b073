"""The sum of an epoch's losses: a number on CPUs, a tensor elsewhere, and either goes on from the other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from launcher.training import loop


@pytest.mark.parametrize(
    "begun", [{}, {"loss": 6.0, "count": 4}, {"loss": torch.tensor(6.0, dtype=torch.float64), "count": 4}]
)
@pytest.mark.parametrize("device", [False, True])
def test_a_sum_is_continued_wherever_it_was_begun(
    monkeypatch: pytest.MonkeyPatch, begun: dict[str, Any], device: bool
) -> None:
    """A checkpoint of CPUs is resumed on GPUs, one of GPUs (or of an older launcher) on CPUs: nothing of the sum is lost."""
    monkeypatch.setattr(loop, "on_device", lambda value: device)
    partial = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in begun.items()}
    one = SimpleNamespace(session=SimpleNamespace(partial=partial), worker=SimpleNamespace(samples=2))
    for loss in (0.5, 1.25):
        loop._TaskLoop._count(one, torch.tensor(loss) if device else loss)  # type: ignore[arg-type]

    assert float(partial["loss"]) == float(begun.get("loss", 0.0)) + 3.5
    assert partial["count"] == begun.get("count", 0) + 4
    assert isinstance(partial["loss"], torch.Tensor) is (device or isinstance(begun.get("loss"), torch.Tensor))
