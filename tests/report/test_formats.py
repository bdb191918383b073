"""Numbers, times and lists as people and programs read them."""

from __future__ import annotations

import json
import math

import pytest

from launcher.report import formats


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (1500.0, "1,500/s"),
        (1512.3, "1,512/s"),
        (99.95, "100/s"),
        (2.314, "2.31/s"),
        (0.25, "15/min"),
        (0.001, "3.6/h"),
        (0, ""),
    ],
)
def test_rates_are_numbers_that_people_read(rate: float, words: str) -> None:
    """Three digits, all digits of larger ones, and no exponent."""
    assert formats.rate(rate) == words


@pytest.mark.parametrize("value", [10**400, -(10**400), "a\n" * 50, float("nan"), float("inf")])
def test_what_no_float_holds_is_told_in_little_room(value: object) -> None:
    """One damaged metric breaks no list of runs: neither a whole number beyond all floats nor a long text."""
    told = formats.number(value)
    assert told == formats.clean(value, 30)
    assert len(told) <= 30


def test_json_lists_hold_an_object_a_line_and_no_nan() -> None:
    """What `ls --json` prints is JSON that any reader takes, infinities and all, and that grep can be used on."""
    shown = formats.json_lines([{"run": "a", "metrics": {"loss": math.nan}}, {"run": "b"}])

    assert json.loads(shown) == [{"run": "a", "metrics": {"loss": "nan"}}, {"run": "b"}]
    assert len(shown.splitlines()) == 4
    assert json.loads(formats.json_lines([])) == []
