"""`frozen`: what ``@dataclass(frozen=True)`` is, made in a quarter of the time.

Python 3.11's dataclass compiles seven functions for a frozen class, 0.5 to 1 ms, and a verb imports sixty such classes.
Here it compiles ``__init__`` alone; equality, hash and repr are the same functions for every class, and that nothing is
assigned to a field is what type checkers see to (PEP 681: ``frozen_default``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Callable[[Any], Any]:
        """typing's, which Python 3.10 lacks; it marks functions for type checkers."""
        return lambda decorator: decorator


__all__ = ["frozen"]

T = TypeVar("T")


@overload
def frozen(cls: type[T], /) -> type[T]: ...
@overload
def frozen(*, kw_only: bool) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T] | None = None, /, *, kw_only: bool = False) -> type[T] | Callable[[type[T]], type[T]]:
    """A dataclass, compared, hashed and shown by its fields, that is not assigned to. ``kw_only``: as dataclass has it."""

    def make(cls: type[T]) -> type[T]:
        made: Any = dataclass(kw_only=kw_only, eq=False, repr=False)(cls)
        made._frozen_fields = tuple(f.name for f in fields(made))
        made.__eq__, made.__hash__, made.__repr__ = _equal, _hash, _shown
        return made  # type: ignore[no-any-return]

    return make if cls is None else make(cls)


def _values(value: Any) -> tuple[Any, ...]:
    return tuple([getattr(value, name) for name in value._frozen_fields])


def _equal(value: Any, other: object) -> bool:
    return _values(value) == _values(other) if type(other) is type(value) else NotImplemented


def _hash(value: Any) -> int:
    return hash(_values(value))


def _shown(value: Any) -> str:
    texts = [f"{name}={getattr(value, name)!r}" for name in value._frozen_fields]
    return f"{type(value).__qualname__}({', '.join(texts)})"
