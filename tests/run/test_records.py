"""`Record`: what messages and events have in common."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from launcher.run.records import Record


class Part(Record):
    rank: int
    host: str | None = None


class Kind(Record, family=True):
    t: float


class Saved(Kind, type="saved"):
    step: int
    parts: list[Part]
    seconds: float | None = None
    meta: dict[str, Any] = {}  # noqa: RUF012  (copied for each record)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def test_a_record_comes_back_as_it_was_written() -> None:
    """What `to_wire` writes, read again, is equal; keys that have their default are not written."""
    saved = Saved(t=1.5, step=3, parts=[Part(rank=0, host="a"), Part(rank=1)])
    wire = json.loads(json.dumps(saved.to_wire()))
    assert wire == {"type": "saved", "t": 1.5, "step": 3, "parts": [{"rank": 0, "host": "a"}, {"rank": 1}]}
    problems: list[str] = []
    assert Kind.read(wire, problems) == saved
    assert problems == []


def test_writing_is_strict() -> None:
    """A missing and an unknown field raise TypeError, and a record cannot be changed."""
    with pytest.raises(TypeError, match="lacks step"):
        Saved(t=1.0, parts=[])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="has no stp"):
        Saved(t=1.0, step=1, parts=[], stp=1)  # type: ignore[call-arg]
    with pytest.raises(FrozenInstanceError):
        Saved(t=1.0, step=1, parts=[]).step = 2  # type: ignore[misc]


def test_a_key_of_a_wrong_type_becomes_none_and_is_counted() -> None:
    """Nothing else of the record is lost for it; unknown keys are ignored, an unknown kind is None."""
    problems: list[str] = []
    read = Kind.read({"type": "saved", "t": 1, "step": "3", "parts": [{"rank": 0}, 7], "more": 1}, problems)
    assert isinstance(read, Saved)
    assert (read.t, read.step, read.parts) == (1, None, [Part(rank=0)])
    assert sorted(problems) == ["saved.parts", "saved.step"]
    assert read.lacking() == ["step"]
    assert Kind.read({"type": "unheard"}, problems) is None
    assert Kind.read({"type": [1]}, problems) is None


def test_two_records_do_not_share_a_default() -> None:
    """A list or dictionary that is a default is copied for each record."""
    one, two = Saved(t=1.0, step=1, parts=[]), Saved(t=1.0, step=1, parts=[])
    assert one.meta == {}
    assert one.meta is not two.meta


@examples(100)
@given(st.dictionaries(st.sampled_from(["type", "t", "step", "parts", "seconds", "meta", "x"]), json_values))
def test_reading_never_raises(values: dict[str, Any]) -> None:
    """Whatever JSON object comes, reading gives a record or None, and what was read can be written again."""
    read = Kind.read({**values, "type": "saved"}, [])
    assert isinstance(read, Saved)
    read.to_wire()
    Kind.read(values, [])
