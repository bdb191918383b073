"""`launcher.frozen.frozen` is a dataclass of the standard library in all that is used of one."""

from __future__ import annotations

import dataclasses
import pickle
from dataclasses import field
from functools import cached_property

import pytest

from launcher.frozen import field_values, frozen


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


def test_nothing_is_assigned_to_it() -> None:
    """A field cannot be changed or deleted, a new one cannot be added, and there is no dictionary to write into."""
    point = Point(1)

    for name in ("x", "seen", "new"):
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"Point is frozen: {name} cannot be changed"):
            setattr(point, name, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x  # type: ignore[misc]
    assert point == Point(1)
    assert not hasattr(point, "__dict__")


def test_it_can_be_pickled() -> None:
    """A value comes out of a pickle as it went in, though nothing can be assigned to it."""
    assert pickle.loads(pickle.dumps(Named(name="a", point=Point(1, 2)))) == Named(name="a", point=Point(1, 2))


def test_a_cached_property_is_computed_once() -> None:
    """A class with a cached property stays frozen and remembers the value."""

    @frozen
    class Square:
        """A number and its square."""

        x: int

        @cached_property
        def squared(self) -> list[int]:
            """The square, in a list of its own."""
            return [self.x**2]

    square = Square(3)

    assert square.squared == [9]
    assert square.squared is square.squared
    with pytest.raises(dataclasses.FrozenInstanceError):
        square.x = 4  # type: ignore[misc]


def test_a_frozen_class_can_extend_another() -> None:
    """The fields of the parent come first; both are set, compared and shown."""

    @frozen
    class Point3(Point):
        """A point in space."""

        z: int = 0

    assert repr(Point3(1, z=2)) == ("test_a_frozen_class_can_extend_another.<locals>.Point3(x=1, y=0, seen=[], z=2)")
    with pytest.raises(dataclasses.FrozenInstanceError):
        Point3(1).x = 2  # type: ignore[misc]


def test_fields_by_name() -> None:
    """The fields are given as a dictionary, in their order, with nested values as they are."""
    assert field_values(Named(name="a", point=Point(1))) == {"name": "a", "point": Point(1)}
