"""Files of lines: long ones are read thinly, huge ones in a time that does not grow with them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from launcher.run.files import Damage, read_lines, read_thinned


def test_long_files_are_read_thinly(tmp_path: Path) -> None:
    """Of many lines evenly picked ones and the last are read."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {i}}}\n' for i in range(50_000)) + '{"step": 50')
    damage: list[Damage] = []
    lines = read_thinned(path, damage, most_lines=1000)

    assert 900 <= len(lines) <= 1001
    assert lines[0] == {"step": 0}
    assert lines[-1] == {"step": 49_999}
    assert damage == [Damage("metrics.jsonl", torn=True)]


def test_of_a_huge_file_a_part_is_read(tmp_path: Path) -> None:
    """Of 20 MB of long lines 1 MB is looked at, from places all over the file; a half-written end is told."""
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(f'{{"step": {i}, "ranks": "{"x" * 9980}"}}\n' for i in range(2000)) + '{"step": 2000, "ra')
    damage: list[Damage] = []
    steps = [line["step"] for line in read_thinned(path, damage, most_bytes=1 << 20)]
    gaps = [b - a for a, b in pairwise(steps)]

    assert 40 <= len(steps) <= 110
    assert (steps[0], steps[-1]) == (0, 1999)
    assert min(gaps) > 0
    assert max(gaps) <= 50
    assert damage == [Damage("samples.jsonl", torn=True)]


@examples(100)
@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=60),
    most_lines=st.integers(1, 40),
    most_bytes=st.integers(1, 4000),
)
def test_thinning_keeps_order_and_the_newest(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], most_lines: int, most_bytes: int
) -> None:
    """Whatever the lengths and limits: each line at most once, in the file's order, and the last one is there."""
    path = tmp_path_factory.getbasetemp() / "thin.jsonl"
    path.write_text("".join(json.dumps({"i": i, "x": "y" * size}) + "\n" for i, size in enumerate(sizes)))
    found = [line["i"] for line in read_thinned(path, most_lines=most_lines, most_bytes=most_bytes)]

    assert found == sorted(set(found))
    assert found[-1] == read_lines(path)[-1]["i"] == len(sizes) - 1
