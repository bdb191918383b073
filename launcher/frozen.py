"""`frozen`: what ``@dataclass(frozen=True, slots=True)`` is, made in a fraction of the time.

Python 3.11's dataclass compiles seven functions for such a class, 0.5 to 1 ms, and a verb imports more than a hundred classes.
Here ``__init__`` alone is compiled. All classes share one ``__setattr__``, ``__eq__``, ``__hash__`` and ``__repr__``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform as dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Callable[[Any], Any]:
        """Stand in for typing's, which Python 3.10 lacks: it marks decorators and metaclasses for type checkers."""
        return lambda marked: marked


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: Any = None, /, *, kw_only: bool = False) -> Any:
    """Make a dataclass that is compared, hashed and shown by its fields. Assigning to one raises FrozenInstanceError.

    ``kw_only``: as dataclass has it. A class with a ``cached_property`` keeps its ``__dict__``, where that stores its value.
    """
    if cls is None:
        return partial(frozen, kw_only=kw_only)
    made = _with_slots(dataclass(init=False, eq=False, repr=False, kw_only=kw_only)(cls))
    made.__init__ = _init_of(made)
    return made


def field_values(value: Any) -> dict[str, Any]:
    """Return the fields of a frozen value by name, as ``vars`` gives those of other objects; nested values stay as they are."""
    return dict(zip(value._frozen_fields, _values(value), strict=True))


def _with_slots(cls: type) -> Any:
    """Return the class made again, as slots can be given to a new class only (dataclasses does the same)."""
    inherited = {name for base in cls.__mro__[1:] for name in getattr(base, "_frozen_fields", ())}
    names = tuple(f.name for f in fields(cls))
    own = {name: value for name, value in vars(cls).items() if name not in (*names, "__dict__", "__weakref__")}
    if not any(isinstance(value, cached_property) for value in own.values()):
        own["__slots__"] = tuple(name for name in names if name not in inherited)
    own.update(_frozen_fields=names, __qualname__=cls.__qualname__, __setattr__=_refuse, __delattr__=_refuse)
    own.update(
        __eq__=_equal,
        __hash__=_hash,
        __repr__=vars(cls).get("__repr__", _shown),
        __getstate__=_values,
        __setstate__=_restore,
    )
    return type.__new__(type(cls), cls.__name__, cls.__bases__, own)


def _init_of(cls: type) -> Any:
    """Return an ``__init__`` that sets the fields of the class; its text is made of their names alone."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_MISSING": MISSING}
    positional, keywords, body = ["self"], ["*"], ["pass"]
    for f in fields(cls):
        name = value = parameter = f.name
        if f.default_factory is not MISSING:
            known[f"_make_{name}"] = f.default_factory
            parameter = f"{name}=_MISSING"
            value = f"_make_{name}() if {name} is _MISSING else {name}"
        elif f.default is not MISSING:
            known[f"_default_{name}"] = f.default
            parameter = f"{name}=_default_{name}"
        (keywords if f.kw_only else positional).append(parameter)
        body.append(f"_set(self, {name!r}, {value})")
    parameters = positional + (keywords if keywords[1:] else [])
    exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(body), known)  # noqa: S102 (names of fields, as dataclasses do)
    return known["__init__"]


def _values(value: Any) -> tuple[Any, ...]:
    return tuple([getattr(value, name) for name in value._frozen_fields])


def _restore(value: Any, state: tuple[Any, ...]) -> None:
    for name, its in zip(value._frozen_fields, state, strict=True):
        object.__setattr__(value, name, its)


def _refuse(value: Any, name: str, _: object = None) -> NoReturn:
    raise FrozenInstanceError(f"{type(value).__qualname__} is frozen: {name} cannot be changed")


def _equal(value: Any, other: object) -> bool:
    return _values(value) == _values(other) if type(other) is type(value) else NotImplemented


def _hash(value: Any) -> int:
    return hash(_values(value))


def _shown(value: Any) -> str:
    texts = [f"{name}={getattr(value, name)!r}" for name in value._frozen_fields]
    return f"{type(value).__qualname__}({', '.join(texts)})"
