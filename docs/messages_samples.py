"""The sample values of docs/messages.md, from messages_samples.yaml."""

from __future__ import annotations

import ast
import re
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

PURE = {"formats", "units", "validation", "amounts", "redact"}
"""Modules whose functions are called with sample values."""
_NUMBER = re.compile(
    r"(^|_)(n|s|min|gb|mb|bytes|t|h|count|size|steps|epoch|number|limit|left|most|max|len|seconds|total)$"
)


class Several(list[Any]):
    """Values that are all shown."""


def _read(value: Any) -> Any:
    if isinstance(value, dict):
        return {k.rstrip("*"): Several(_read(v)) if k.endswith("*") else _read(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_read(item) for item in value]
    return PurePosixPath(value) if isinstance(value, str) and value.startswith("runs/") and " " not in value else value


GIVEN: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
WITHIN: dict[str, list[list[str]]] = GIVEN["within"]
_NAMED, _CALLS, _SPECIAL = _read(GIVEN["named"]), _read(GIVEN["calls"]), _read(GIVEN["special"])
_SUFFIXES = sorted(_NAMED, key=len, reverse=True)


def special(place: str, name: str) -> Any:
    """The sample that the module at ``place`` has for a name, the longest beginning of its path first; None: none."""
    for begin in sorted((b for b in _SPECIAL if place.startswith(b)), key=len, reverse=True):
        if name in _SPECIAL[begin]:
            return _SPECIAL[begin][name]
    return _CALLS.get(name)


def by_name(name: str, *, guess: bool = True) -> Any:
    """The sample of a name; None: none. ``guess``: 3 for what is called as a number is."""
    low = name if name == "__name__" else name.lower().strip("_")
    if low in _NAMED:
        return _NAMED[low]
    known = next((suffix for suffix in _SUFFIXES if low.endswith("_" + suffix)), None)
    return _NAMED[known] if known else 3 if guess and _NUMBER.search(low) else None


def of(place: str, name: str) -> Any:
    """The sample of an expression, by the last of its names; a placeholder where there is none."""
    known = special(place, name)
    known = by_name(name) if known is None else known
    return f"‹{name}›" if known is None else known


def written(value: object) -> str:
    """A sample as Python writes it."""
    return GIVEN["reprs"].get(value) or repr(str(value))


def last_name(node: ast.expr) -> str:
    """The identifier that says what an expression is: the key of a subscript, the attribute, the function called."""
    match node:
        case ast.Subscript(slice=ast.Constant(value=str(key))):
            return key
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(key)), *_]):
            return key
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[inner, *_]) if name in _WRAPPERS:
            return last_name(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in TEXT_METHODS:
            return last_name(inner)
        case ast.Subscript(value=inner) | ast.Call(func=inner) | ast.Starred(value=inner) | ast.Await(value=inner):
            return last_name(inner)
        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.NamedExpr(target=ast.Name(id=name)):
            return name
        case (
            ast.BinOp(left=inner) | ast.UnaryOp(operand=inner) | ast.IfExp(body=inner) | ast.BoolOp(values=[inner, *_])
        ):
            return last_name(inner)
    return "value"


TEXT_METHODS = {
    *("strip", "rstrip", "lstrip", "lower", "upper", "capitalize", "title", "removeprefix", "removesuffix"),
    *("join", "replace", "format", "split"),
}
_WRAPPERS = {
    *(
        "as_text",
        "as_number",
        "as_list",
        "clean",
        "str",
        "int",
        "float",
        "round",
        "list",
        "sorted",
        "quote",
        "repr",
        "dumps",
    ),
    *("len", "tuple", "set", "sum", "min", "max", "join", "map", "ord", "type", "fromkeys"),
    *("short_list", "named_ranks", "plural", "signal_name", "duration", "size"),
}
"""Functions that show what they are given."""
