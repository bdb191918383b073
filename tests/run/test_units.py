"""Amounts for people."""

from __future__ import annotations

import pytest

from launcher.run.units import all_ranks, named_ranks, size


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, ""), (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (3_140_000, "3.1 MB"), (99_960_000, "100 MB"),
        (999_600_000, "1.0 GB"), (79.2e9, "79.2 GB"), (4e15, "4000 TB"),
    ],
)  # fmt: skip
def test_sizes_are_short(count: float | None, text: str) -> None:
    """Two or three figures and a unit; a rounded value never reads "1000 MB"."""
    assert size(count) == text


@pytest.mark.parametrize(
    ("numbers", "text"), [([3], "rank 3"), ([2, 3], "ranks 2, 3"), ([6, 0, 1, 2, 3, 4, 7], "ranks 0-4, 6, 7")]
)
def test_ranks_are_named_shortly(numbers: list[int], text: str) -> None:
    """One rank is "rank 3", many in a row are a span."""
    assert named_ranks(numbers) == text


def test_all_ranks_are_counted() -> None:
    """Two are both."""
    assert (all_ranks(2), all_ranks(8)) == ("both ranks", "all 8 ranks")
