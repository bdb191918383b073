"""The device of a script that calls `launcher.attach`."""

from __future__ import annotations

import pytest
import torch

from launcher.training.attach import _device


@pytest.mark.parametrize(
    ("current", "local_rank", "count", "expected"),
    [
        (0, 0, 4, 0),
        (0, 3, 4, 3),  # nothing was set
        (2, 3, 4, 2),  # the script has chosen
        (0, 3, 1, 0),  # each rank sees one alone, or all share one
    ],
)
def test_the_device_is_the_one_that_was_set_or_that_of_the_rank(
    current: int, local_rank: int, count: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without torch.cuda.set_device every rank would have cuda:0, and save the random state of that one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    assert _device(local_rank) == torch.device("cuda", expected)


def test_without_gpus_it_is_the_cpu() -> None:
    """As everywhere in this suite."""
    assert _device(1) == torch.device("cpu")
