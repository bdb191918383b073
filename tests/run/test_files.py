"""Files of lines: long ones are read thinly, huge ones in a time that does not grow with them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from launcher.run.files import Damage, last_before, read_lines, read_thinned


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


@examples(100)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 400)), max_size=40), st.integers(0, 3))
def test_the_last_line_of_an_attempt_is_found_by_halves(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[int, int]], attempt: int
) -> None:
    """However long the lines are, and however many each attempt has: the same line that reading all of them would find."""
    path = tmp_path_factory.mktemp("halves") / "samples.jsonl"
    numbered: list[dict[str, Any]] = [
        {"attempt": a, "i": i, "x": "x" * size} for i, (a, size) in enumerate(sorted(lines))
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in numbered))
    found = last_before(path, lambda line: line["attempt"] > attempt)

    assert found == next((line for line in reversed(numbered) if line["attempt"] <= attempt), None)


def test_little_is_read_to_find_the_last_line(tmp_path: Path) -> None:
    """Of a hundred thousand lines some thirty are looked at; a missing file has none."""
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(json.dumps({"attempt": i // 70_000, "i": i}) + "\n" for i in range(100_000)))
    looked: list[int] = []

    def beyond(line: dict[str, int]) -> bool:
        looked.append(line["i"])
        return line["attempt"] > 0

    assert last_before(path, beyond) == {"attempt": 0, "i": 69_999}
    assert len(looked) <= 30
    assert last_before(tmp_path / "none.jsonl", beyond) is None
