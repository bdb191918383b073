"""What --gres and --gpus say of GPUs is read in one way."""

from __future__ import annotations

import pytest

from launcher.gres import read_gpus


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("tmpdisk:100", []),
        ("gpu", [("", 1)]),
        ("gpu:4", [("", 4)]),
        ("gpu:a100", [("a100", 1)]),
        ("gpu:a100:4(S:0-1),gpu:3090:2,tmp:1", [("a100", 4), ("3090", 2)]),
        ("gpu:tesla:v100:2(IDX:0,2)", [("tesla:v100", 2)]),
        ("gres/gpu=8", [("", 8)]),
        ("gres:gpu:2", [("", 2)]),
    ],
)
def test_a_type_is_any_text(text: str, found: list[tuple[str, int]]) -> None:
    """Of each entry of GPUs the type, also one of digits, and the number; what else stands there is passed over."""
    assert read_gpus(text) == found


def test_every_entry_of_gpus_is_of_gpus() -> None:
    """--gpus has no names before the types."""
    assert read_gpus("a100:4", named=False) == [("a100", 4)]
    assert read_gpus("8", named=False) == [("", 8)]
