"""State as plain values: what a checkpoint holds in place of objects that torch's restricted unpickler does not make.

``torch.load(weights_only=True)`` makes tensors, numbers, text, lists, tuples, dicts and sets. Other common types are stored as
stand-ins: an OrderedDict of ``type`` and ``value``, marked by an attribute of its own, so that no key or value of a user can
be mistaken for one. Any torch reads the file, and reading it imports nothing; `from_plain` makes the objects again.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.util
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from pathlib import Path, PosixPath, PurePosixPath
from types import SimpleNamespace
from typing import Any

import torch

_MARK = "_launcher_stand_in"
ATOMS = (type(None), bool, int, float, complex, str, bytes, bytearray, torch.Size, torch.device, torch.dtype)
"""Types that the restricted unpickler makes by itself."""
_VALUES = {
    kind.__name__: kind
    for kind in (
        datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone,
        Decimal, Fraction, PosixPath, PurePosixPath, slice, range,
    )
}  # fmt: skip
"""Made from the arguments that their own ``__reduce_ex__`` gives."""
_NAMESPACES = {kind.__name__: kind for kind in (SimpleNamespace, argparse.Namespace)}
_FACTORIES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (bool, int, float, str, list, tuple, dict, set, frozenset, OrderedDict, Counter, deque)
}
"""Classes that a stand-in names; what a defaultdict may fill itself with."""


@dataclass(frozen=True)
class Elsewhere:
    """In place of a tensor that the file of another rank holds."""

    rank: int
    number: int
    """Of the tensor, in that file."""


def is_stand_in(node: Any) -> bool:
    """Whether a value of a checkpoint is a stand-in for an object of another type."""
    return type(node) is OrderedDict and hasattr(node, _MARK)


def like(original: dict[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    """Make a dict of the type of ``original`` with other items; a plain dict for types outside the standard library."""
    if isinstance(original, defaultdict):
        return defaultdict(original.default_factory, items)
    if isinstance(original, Counter):
        return Counter(items)
    if not isinstance(original, OrderedDict):
        return items
    ordered = OrderedDict(items)
    if metadata := getattr(original, "_metadata", None):  # versions of modules, as state_dict() leaves them
        ordered._metadata = metadata  # type: ignore[attr-defined]
    return ordered


def map_leaves(node: Any, change: Callable[[Any, tuple[Any, ...]], Any], path: tuple[Any, ...] = ()) -> Any:
    """Return dicts, lists and tuples as they are, with ``change(leaf, its keys)`` in place of everything else in them."""
    if isinstance(node, dict):
        return like(node, {key: map_leaves(value, change, (*path, key)) for key, value in node.items()})
    if type(node) in (list, tuple):
        return type(node)(map_leaves(value, change, (*path, number)) for number, value in enumerate(node))
    return change(node, path)


def to_plain(node: Any) -> Any:
    """Return ``node`` with stand-ins for what is neither plain nor a tensor; what cannot be replaced stays as it is."""
    kind = type(node)
    if isinstance(node, torch.Tensor) or kind in ATOMS:
        return node
    if kind in (list, tuple):
        return kind(to_plain(value) for value in node)
    if isinstance(node, dict) and kind is not defaultdict and all(map(_is_plain_key, node)):
        return like(node, {key: to_plain(value) for key, value in node.items()})
    if kind is set and all(map(_is_plain_key, node)):
        return node
    if (found := _described(node, kind)) is None:
        return node
    stand_in = OrderedDict(type=found[0], value=to_plain(found[1]))
    setattr(stand_in, _MARK, 1)
    return stand_in


def _is_plain_key(key: Any) -> bool:
    return type(key) in ATOMS or isinstance(key, torch.Tensor) or (type(key) is tuple and all(map(_is_plain_key, key)))


def _described(node: Any, kind: Any) -> tuple[str, Any] | None:
    """Return the tag and the value of the stand-in for ``node``; None where there can be none."""
    name = kind.__name__
    if kind is _VALUES.get(name):
        return name, list(node.__reduce_ex__(4)[1])
    if kind is _NAMESPACES.get(name):
        return name, vars(node)
    if kind is deque:
        return name, [list(node), node.maxlen]
    if kind is Elsewhere:
        return name, [node.rank, node.number]
    if kind in (set, frozenset):  # in one order, so that equal states have equal digests in all processes
        return name, sorted(node, key=lambda value: (type(value).__name__, repr(value)))
    if kind is defaultdict:
        factory = node.default_factory
        known = factory is None or _FACTORIES.get(getattr(factory, "__name__", "")) is factory
        return (name, [factory and factory.__name__, dict(node)]) if known else None
    if isinstance(node, dict):  # keys of other types; of a class of the user's own a plain dict, as everywhere
        return (name if kind in (dict, OrderedDict, Counter) else "dict"), [list(pair) for pair in node.items()]
    return _numpy(node, kind) or _of_a_class(node, kind)


def _numpy(node: Any, kind: Any) -> tuple[str, Any] | None:
    numpy = sys.modules.get("numpy")
    if numpy is None or not (kind is numpy.ndarray or isinstance(node, numpy.generic)):
        return None
    dtype = node.dtype
    if dtype.hasobject or numpy.dtype(dtype.str) != dtype:  # structured ones, and those of other libraries
        return None
    if kind is not numpy.ndarray:
        return "numpy scalar", [dtype.str, node.tobytes()]
    # The last bits of sums depend on the order in memory.
    order = "F" if node.flags.f_contiguous and not node.flags.c_contiguous else "C"
    # A copy: torch does not save two views of one memory as different types, and a tensor may share the array's.
    data = torch.from_numpy(node.flatten(order).view(numpy.uint8))
    return "numpy array", [dtype.str, list(node.shape), order, data]


def _of_a_class(node: Any, kind: Any) -> tuple[str, Any] | None:
    """Describe an enum's member, a named tuple or a dataclass of nothing but fields, whose class can be found by its name."""
    if _named(kind.__module__, kind.__qualname__) is not kind:
        return None
    where = [kind.__module__, kind.__qualname__]
    if isinstance(node, Enum):
        return ("flag", [*where, node.value]) if isinstance(node, Flag) else ("enum", [*where, node.name])
    if _is_namedtuple(kind):  # attributes beside its fields would be lost
        return None if getattr(node, "__dict__", None) else ("namedtuple", [*where, list(node)])
    if _is_record(kind):
        values = {f.name: getattr(node, f.name) for f in fields(node) if hasattr(node, f.name)}
        return ("dataclass", [*where, values]) if values.keys() >= getattr(node, "__dict__", {}).keys() else None
    return None


def _is_namedtuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and is_dataclass(kind) and kind.__new__ is object.__new__


def _named(module: str, name: str) -> Any:
    """Return the object of a module that is imported; None when there is none of that name."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def from_plain(node: Any, *, code_dir: str = "", tensor: Callable[[torch.Tensor], Any] = lambda value: value) -> Any:
    """Undo `to_plain`, with tensors passed through ``tensor``. Classes come from ``code_dir`` or are imported already.

    No constructor and no function of a name that the file holds is called: of an Enum a member is looked up, a named tuple
    and a dataclass get their fields. Raises Exception of any kind when a stand-in does not fit.
    """

    def walk(node: Any) -> Any:
        if isinstance(node, torch.Tensor):
            return tensor(node)
        if type(node) in (list, tuple):
            return type(node)(walk(value) for value in node)
        if is_stand_in(node):
            return _made(node["type"], walk(node["value"]), code_dir)
        if type(node) in (dict, OrderedDict):
            return like(node, {key: walk(value) for key, value in node.items()})
        return node

    return walk(node)


def _made(tag: str, value: Any, code_dir: str) -> Any:
    if tag in _VALUES:
        return _VALUES[tag](*value)
    if tag in _NAMESPACES:
        return _NAMESPACES[tag](**value)
    if tag in ("set", "frozenset"):
        return _FACTORIES[tag](value)
    if tag in ("dict", "OrderedDict", "Counter"):
        return _FACTORIES[tag](dict(value))
    if tag == "deque":
        return deque(*value)
    if tag == "defaultdict":
        return defaultdict(_FACTORIES[value[0]] if value[0] else None, value[1])
    if tag in ("numpy scalar", "numpy array"):
        return _numpy_made(*value)
    return _class_made(tag, code_dir, *value)


def _numpy_made(kind: str, *value: Any) -> Any:
    import numpy

    dtype = numpy.dtype(kind)
    if dtype.hasobject:  # its bytes would be taken for addresses
        raise TypeError("an array of objects")
    if len(value) == 1:
        return numpy.frombuffer(value[0], dtype)[0] if dtype.itemsize else dtype.type()
    shape, order, data = value
    return data.clone().numpy().view(dtype).reshape(shape, order=order)


def _class_made(tag: str, code_dir: str, module: str, name: str, value: Any) -> Any:
    kind = _class(module, name, code_dir)
    if tag in ("enum", "flag") and issubclass(kind, Enum):
        return kind(value) if tag == "flag" and issubclass(kind, Flag) else kind[value]
    if tag == "namedtuple" and _is_namedtuple(kind) and len(kind._fields) == len(value):
        return tuple.__new__(kind, value)
    if tag == "dataclass" and _is_record(kind):
        if unknown := sorted(value.keys() - {f.name for f in fields(kind)}):
            raise TypeError(f"{name} has no field {unknown[0]}")
        made = object.__new__(kind)
        for field, its in value.items():
            object.__setattr__(made, field, its)  # as unpickling does; frozen ones refuse any other way
        return made
    raise TypeError(f"{module}.{name} is not a {tag} with these fields")


def _class(module: str, name: str, code_dir: str) -> Any:
    """Find a class by its name; nothing is imported but files below ``code_dir``, the code that this process runs anyway."""
    if module not in sys.modules and code_dir:
        root = importlib.util.find_spec(module.partition(".")[0])
        places = [root.origin] if root and root.origin else list(root.submodule_search_locations or []) if root else []
        if places and all(Path(place).resolve().is_relative_to(Path(code_dir).resolve()) for place in places):
            importlib.import_module(module)
    kind = _named(module, name)
    if isinstance(kind, type) and (kind.__module__, kind.__qualname__) == (module, name):
        return kind
    raise TypeError(f"there is no class {module}.{name}")
