"""`launcher.frozen.frozen` is a dataclass of the standard library in all that is used of one."""

from __future__ import annotations

import dataclasses
from dataclasses import field

import pytest

from launcher.frozen import frozen


@frozen
class Point:
    """Two coordinates and what is made for each."""

    x: int
    y: int = 0
    seen: list[str] = field(default_factory=list)


@frozen(kw_only=True)
class Named:
    """A point with a name."""

    name: str
    point: Point


class Other(Point):
    """Of the same fields, and another class."""


def test_equal_fields_are_equal_values() -> None:
    """Values are compared by class and fields, as a dataclass compares them."""
    assert Named(name="a", point=Point(1, 2)) == Named(name="a", point=Point(1, 2))
    assert Point(1, 2) != Point(2, 1)
    assert Point(1) != Other(1)
    assert Point(1) != (1, 0, [])


def test_it_is_shown_as_a_dataclass_is() -> None:
    """The repr is the one that a dataclass has."""
    assert repr(Named(name="a", point=Point(1))) == "Named(name='a', point=Point(x=1, y=0, seen=[]))"


def test_equal_values_hash_alike() -> None:
    """Values can be keys, where their fields can."""

    @frozen
    class Key:
        """A key."""

        name: str

    assert {Key("a"): 1}[Key("a")] == 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(Point(1))


def test_dataclasses_know_it() -> None:
    """asdict, replace and fields work; factories make a value each; keyword-only fields are that."""
    first, second = Point(1), Point(1)
    first.seen.append("here")

    assert second.seen == []
    assert dataclasses.asdict(Named(name="a", point=second)) == {"name": "a", "point": {"x": 1, "y": 0, "seen": []}}
    assert dataclasses.replace(second, y=5) == Point(1, 5)
    with pytest.raises(TypeError, match="positional"):
        Named("a", second)  # type: ignore[misc]
