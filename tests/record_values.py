"""What hypothesis makes of records: messages and events with any values that they admit, and any JSON."""

from __future__ import annotations

import types
import typing
from typing import Any

from examples import examples
from hypothesis import strategies as st

from launcher.run.records import Record

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
JOB_IDS = st.none() | st.from_regex(r"[1-9][0-9]{0,8}([_+][0-9]{1,4})?", fullmatch=True)
"""Anything else is read as None."""
relaxed = examples(25)


def of(hint: Any) -> st.SearchStrategy[Any]:
    """Values that a field of this type may have."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return JSON
    if origin in (typing.Union, types.UnionType):
        return st.one_of([of(part) for part in parts])
    if origin is list:
        return st.lists(of(parts[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(st.text(max_size=5), of(parts[1]), max_size=3)
    if isinstance(hint, type) and issubclass(hint, Record):
        return records(hint)
    if hint is int:
        return st.integers(-(10**15), 10**15)  # no run has larger numbers
    return st.from_type(hint).filter(lambda value: value == value)


def records(kind: Any) -> st.SearchStrategy[Any]:
    """Records of one kind, with and without the keys that have a default."""
    hints = {name: hint for name, hint in typing.get_type_hints(kind).items() if name in kind._frozen_fields}
    needed = {
        name: JOB_IDS if name == "job_id" else of(hint) for name, hint in hints.items() if name not in kind._defaults
    }
    optional = {name: of(hint) for name, hint in hints.items() if name in kind._defaults}
    return st.fixed_dictionaries(needed, optional=optional).map(lambda values: kind(**values))
