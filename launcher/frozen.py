"""`frozen`: what ``@dataclass(frozen=True, slots=True)`` is, made in a fraction of the time.

Python 3.11's dataclass compiles seven functions for such a class, 0.5 to 1 ms, and a verb imports more than a hundred classes.
Here ``__init__`` alone is compiled. All classes share one ``__setattr__``, ``__eq__``, ``__hash__`` and ``__repr__``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Callable[[Any], Any]:
        """typing's, which Python 3.10 lacks; it marks functions for type checkers."""
        return lambda decorator: decorator


T = TypeVar("T")


@overload
def frozen(cls: type[T], /) -> type[T]: ...
@overload
def frozen(*, kw_only: bool) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T] | None = None, /, *, kw_only: bool = False) -> type[T] | Callable[[type[T]], type[T]]:
    """Make a dataclass that is compared, hashed and shown by its fields. Assigning to one raises FrozenInstanceError.

    ``kw_only``: as dataclass has it. A class with a ``cached_property`` keeps its ``__dict__``, where that stores its value.
    """

    def make(cls: type[T]) -> type[T]:
        return _with_init(_with_slots(dataclass(init=False, eq=False, repr=False, kw_only=kw_only)(cls)))

    return make if cls is None else make(cls)


def field_values(value: Any) -> dict[str, Any]:
    """The fields of a frozen value by name, as ``vars`` gives those of other objects; nested values stay as they are."""
    return dict(zip(value._frozen_fields, _values(value), strict=True))


def _with_slots(cls: type[T]) -> type[T]:
    """The class again, as slots can be given to a new class only (dataclasses does the same)."""
    inherited = {name for base in cls.__mro__[1:] for name in getattr(base, "_frozen_fields", ())}
    names = tuple(f.name for f in fields(cls))  # type: ignore[arg-type]
    own = {name: value for name, value in vars(cls).items() if name not in (*names, "__dict__", "__weakref__")}
    if not any(isinstance(value, cached_property) for value in own.values()):
        own["__slots__"] = tuple(name for name in names if name not in inherited)
    own.update(_frozen_fields=names, __qualname__=cls.__qualname__, __setattr__=_refuse, __delattr__=_refuse)
    own.update(__eq__=_equal, __hash__=_hash, __repr__=_shown, __getstate__=_values, __setstate__=_restore)
    made: type[T] = type.__new__(type(cls), cls.__name__, cls.__bases__, own)
    return made


def _with_init(cls: type[T]) -> type[T]:
    """The class with an ``__init__`` of its fields; the text is made of their names alone."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_MISSING": MISSING}
    positional, keywords, body = ["self"], ["*"], []
    for f in fields(cls):  # type: ignore[arg-type]
        value = f.name
        parameter = f.name
        if f.default_factory is not MISSING:
            known[f"_make_{f.name}"] = f.default_factory
            parameter += "=_MISSING"
            value = f"_make_{f.name}() if {f.name} is _MISSING else {f.name}"
        elif f.default is not MISSING:
            known[f"_default_{f.name}"] = f.default
            parameter += f"=_default_{f.name}"
        (keywords if f.kw_only else positional).append(parameter)
        body.append(f"_set(self, {f.name!r}, {value})")
    parameters = positional + (keywords if keywords[1:] else [])
    exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(body or ["pass"]), known)  # noqa: S102
    cls.__init__ = known["__init__"]  # type: ignore[method-assign]
    return cls


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
