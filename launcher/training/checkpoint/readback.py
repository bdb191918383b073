"""Checks that a state can be loaded again: torch's own restricted unpickler reads it before it is reported as saved."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import _weights_only_unpickler as restricted

from launcher.errors import CheckpointError
from launcher.training.checkpoint.distributed import is_part
from launcher.training.checkpoint.plain import ATOMS, is_stand_in, map_leaves, to_plain

_PLAIN = "tensors, numbers, text, lists and dicts can"
_CONTENT = {"deque": 0, "defaultdict": 1, "namedtuple": 2, "dataclass": 2}
"""Which part of a stand-in's value holds what the user put in."""


def loadable(tree: Any) -> Any:
    """Return ``tree`` as plain values. Raises CheckpointError, which names key and type, when they could not be loaded again.

    Tensors that are torch's own are not read: they can always be loaded, and are nearly all that there is to read.
    """
    tree = to_plain(tree)
    for path, leaf in _leaves(tree, ()):
        if is_part(leaf):
            raise CheckpointError(
                f"{_named(path)} is a DTensor that was none when it was registered: save it with run.save_dir()"
            )
    try:
        _read_back(map_leaves(tree, lambda leaf, _: None if _is_torchs(leaf) else leaf))
    except Exception as error:
        for path, leaf in _leaves(tree, ()):
            try:
                _read_back(leaf)
            except Exception as its:
                # Of what cannot even be written (a lock, a lambda) Python says why; torch's words only name the type.
                why = "" if isinstance(its, pickle.UnpicklingError) else f": {_first_line(its)}"
                text = f"{_named(path)} is {_what(leaf)}, which cannot be loaded again safely ({_PLAIN}){why}"
                raise CheckpointError(text) from error
        raise CheckpointError(f"the state cannot be loaded again: {_first_line(error)}") from error
    return tree


def _is_torchs(node: Any) -> bool:
    return type(node) in (torch.Tensor, torch.nn.Parameter) and not node.__dict__


class _Pickler(pickle.Pickler):
    """Pickles as torch.save does, without the data of storages."""

    def persistent_id(self, obj: Any) -> Any:
        """Replace storages by a tuple, as torch's unpickler demands."""
        if isinstance(obj, torch.storage.TypedStorage):
            kind = getattr(torch, obj._pickle_storage_type())  # type: ignore[no-untyped-call]
            return ("storage", kind, "", "cpu", obj._size())  # type: ignore[no-untyped-call]
        return ("storage", torch.UntypedStorage, "", "cpu", obj.nbytes()) if torch.is_storage(obj) else None


def _read_back(node: Any) -> None:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=2).dump(node)
    buffer.seek(0)
    unpickler: Any = restricted.Unpickler(buffer, encoding="utf-8")  # type: ignore[no-untyped-call]
    unpickler.persistent_load = _empty
    unpickler.load()


def _empty(identity: Any) -> Any:
    """Make a storage on torch's device without memory."""
    _, kind, _, _, count = identity
    dtype = getattr(kind, "dtype", torch.uint8)
    storage = torch.UntypedStorage(count * torch.empty((), dtype=dtype).element_size(), device="meta")  # type: ignore[no-untyped-call]
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]


def _leaves(node: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if is_stand_in(node):
        part = _CONTENT.get(node["type"])
        yield from _leaves(node["value"] if part is None else node["value"][part], path)
    elif type(node) in (dict, OrderedDict):
        for key, value in node.items():
            yield from _leaves(value, (*path, key))
    elif type(node) in (list, tuple):
        for number, value in enumerate(node):
            yield from _leaves(value, (*path, number))
    elif not _is_torchs(node) and (type(node) not in ATOMS or type(node) is int):
        yield path, node


def _named(path: tuple[Any, ...]) -> str:
    """Return ``the state of 'optimizer': param_groups[0].foo``."""
    registered = path[:1] == ("objects",)
    inner = path[2:] if registered else path
    words = (f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]" for key in inner)
    key = "".join(words).removeprefix(".") or "what state_dict() returns"
    return f"the state of {path[1]!r}: {key}" if registered else key


def _what(leaf: Any) -> str:
    kind = type(leaf)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"a {name}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
