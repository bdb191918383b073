"""`Record`: the base of messages and events, frozen classes whose fields are the keys of a JSON object.

Writing is strict: a wrong or a missing field raises TypeError at once. Reading is tolerant: unknown keys and kinds are
ignored, and a known key of a wrong type becomes None and is counted. A class costs about 0.02 ms to make, no code is
compiled for it, and how it is read is worked out at its first reading.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

from launcher.frozen import dataclass_transform, frozen

if TYPE_CHECKING:
    from typing_extensions import Self

_ABSENT: Any = object()
_DEEP = (list, dict)


class _Shape(NamedTuple):
    """What a field admits."""

    exact: frozenset[type] | None
    """Types of values that are taken as they are; None: every type."""
    items: _Shape | None = None
    """Of lists and dictionaries: what their values admit."""
    container: type | None = None
    """list or dict, where ``items`` are looked at."""
    record: Any = None
    """A nested record's class."""

    @property
    def admits_none(self) -> bool:
        """Whether the value may be None."""
        return self.exact is None or types.NoneType in self.exact

    def empty(self) -> Any:
        """Return the empty value of the type; None where that is admitted."""
        if self.exact is None or self.admits_none or self.record is not None:
            return None
        return (self.container or next(iter(self.exact)))()


class _FieldRead(NamedTuple):
    """How one field is read."""

    name: str
    put: Callable[[Any, Any], None]
    exact: frozenset[type]
    absent: Any
    """What stands for a missing key: the default, or a mark where the default is not taken as it is."""
    shape: _Shape


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class RecordType(type):
    """Makes record classes: annotated names become slots, values beside them defaults, ``type=...`` the kind."""

    def __new__(
        mcs, name: str, bases: tuple[type, ...], body: dict[str, Any], type: str | None = None, family: bool = False
    ) -> RecordType:
        """Make the class. ``family``: its subclasses that have a type are the kinds which its `read` knows."""
        own = tuple(n for n, hint in body.get("__annotations__", {}).items() if "ClassVar" not in str(hint))
        above: Any = bases[-1]  # what may stand before it has no fields
        defaults = {**getattr(above, "_defaults", {}), **{n: body.pop(n) for n in own if n in body}}
        fields = above._frozen_fields + own
        body.update(__slots__=own, _frozen_fields=fields, _defaults=defaults, _fields_read=None, _required=())
        if family or not isinstance(above, RecordType):
            body["kinds"] = {}
        if type is not None:
            body["type"] = type
        made = super().__new__(mcs, name, bases, body)
        if type is not None:
            made.kinds[type] = made
        return made

    _frozen_fields: tuple[str, ...]
    _defaults: dict[str, Any]
    kinds: dict[str, Any]
    _fields_read: list[_FieldRead] | None
    _required: tuple[str, ...]


@frozen
class _Frozen:
    """`frozen`'s comparison, hash, representation and refusal to be assigned to, for all records."""


class Record(_Frozen, metaclass=RecordType):
    """A frozen value that is one JSON object.

    Fields are given by name. One with a default is not written while it has it; one without is always written, as null
    where it is None.
    """

    type: typing.ClassVar[str] = ""
    """The value of the object's key ``type``; empty in records that lie inside others."""

    def __init__(self, **values: Any) -> None:
        cls = self.__class__
        for name in cls._frozen_fields:
            value = values.pop(name, _ABSENT)
            if value is _ABSENT:
                if name not in cls._defaults:
                    raise TypeError(f"{cls.__name__} lacks {name}")
                value = _copied(cls._defaults[name])
            object.__setattr__(self, name, value)
        if values:
            raise TypeError(f"{cls.__name__} has no {', '.join(values)}")

    def to_wire(self) -> dict[str, Any]:
        """Return the JSON object, ``type`` first."""
        cls = self.__class__
        found: dict[str, Any] = {"type": cls.type} if cls.type else {}
        for name in cls._frozen_fields:
            value = getattr(self, name)
            if name not in cls._defaults or value != cls._defaults[name]:
                found[name] = _written(value)
        return found

    @classmethod
    def from_wire(cls, values: Mapping[str, Any], problems: list[str]) -> Self:
        """Return the record that ``values`` are; whatever is of a wrong type becomes None and its name joins ``problems``."""
        made = object.__new__(cls)
        get = values.get
        for name, put, exact, absent, shape in cls._fields_read or cls._prepare():
            value = get(name, absent)
            if value.__class__ not in exact:
                value = cls._read_field(name, shape, values, problems)
            put(made, value)
        return made

    @classmethod
    def _read_field(cls, name: str, shape: _Shape, values: Mapping[str, Any], problems: list[str]) -> Any:
        """Return the value of a key that is missing, or is not taken as it is."""
        if name not in values:
            return _copied(cls._defaults.get(name))
        if shape.exact is None:
            return values[name]
        return _read(values[name], shape, f"{cls.type or cls.__name__}.{name}", problems)

    @classmethod
    def read(cls, values: Mapping[str, Any], problems: list[str]) -> Self | None:
        """Return the record of this family that ``values`` are; None where their type is unknown."""
        kind = values.get("type")
        known: type[Self] | None = cls.kinds.get(kind) if isinstance(kind, str) else None
        return None if known is None else known.from_wire(values, problems)

    def lacking(self) -> list[str]:
        """Return the fields that are None although their type does not admit it: they were not there, or unreadable."""
        cls = self.__class__
        if cls._fields_read is None:
            cls._prepare()
        return [name for name in cls._required if getattr(self, name) is None]

    @classmethod
    def _prepare(cls) -> list[_FieldRead]:
        """Work out from the annotations, once, how the class is read."""
        hints = typing.get_type_hints(cls)
        fields = []
        for name in cls._frozen_fields:
            shape, default = _shape(hints[name]), cls._defaults.get(name)
            absent = _ABSENT if default.__class__ in _DEEP else default
            fields.append(_FieldRead(name, getattr(cls, name).__set__, shape.exact or frozenset(), absent, shape))
        cls._required = tuple(f.name for f in fields if not f.shape.admits_none)
        cls._fields_read = fields
        return fields


def _copied(value: Any) -> Any:
    return value.copy() if value.__class__ in _DEEP else value


def _written(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_wire()
    if value.__class__ is list:
        return [_written(item) for item in value]
    if value.__class__ is dict:
        return {key: _written(item) for key, item in value.items()}
    return value


def _read(value: Any, shape: _Shape, name: str, problems: list[str]) -> Any:
    """Return a value that is not taken as it is: a nested one read, or None."""
    if shape.record is not None and value.__class__ is dict:
        return shape.record.from_wire(value, problems)
    if shape.items is None or not isinstance(value, shape.container or ()):
        problems.append(name)
        return None
    items = shape.items
    pairs: Any = enumerate(value) if isinstance(value, list) else typing.cast("dict[str, Any]", value).items()
    read = {
        k: v if items.exact is None or v.__class__ in items.exact else _read(v, items, name, problems) for k, v in pairs
    }
    if not items.admits_none:  # what cannot be read inside a list is left out of it
        read = {k: v for k, v in read.items() if v is not None}
    return list(read.values()) if shape.container is list else read


def _shape(hint: Any) -> _Shape:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return _Shape(None)
    if origin in (typing.Union, types.UnionType):
        shapes = [_shape(part) for part in parts]
        deep = next((s for s in shapes if s.items or s.record), _Shape(frozenset()))
        return deep._replace(exact=frozenset().union(*(s.exact or () for s in shapes)))
    if origin in _DEEP:
        items = _shape(parts[-1])
        return _Shape(frozenset({origin})) if items.exact is None else _Shape(frozenset(), items, origin)
    if isinstance(hint, RecordType):
        return _Shape(frozenset(), record=hint)
    return _Shape(frozenset({int, float}) if hint is float else frozenset({hint}))
