"""Say what pydantic found wrong: one sentence a fault, with what is allowed and the nearest valid key."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import re
import typing
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from launcher.config.document.schema import Job
from launcher.config.document.source import Problem, is_below, join

__all__ = ["describe_errors", "homes", "key_name", "keys_at", "suggestion", "value_text"]

_TYPES = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list, such as [a, b]",
    "dict_type": "a mapping of keys to values",
    "dataclass_type": "a mapping of keys to values",
    "dataclass_exact_type": "a mapping of keys to values",
    "finite_number": "a finite number",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean "x"?``, or the list of what is allowed."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f'; did you mean "{close[0]}"?'
    return f"; allowed here: {', '.join(known)}" if known else ""


def value_text(value: Any) -> str:
    """Show a value in a message, in at most 60 characters."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = repr(value) if not isinstance(value, str) else '"' + value.encode("unicode_escape").decode() + '"'
    return text if len(text) <= 60 else text[:57] + '..."'


def describe_errors(error: ValidationError, data: Any) -> list[Problem]:
    """List one problem a key path, in the order of the schema."""
    found: dict[str, list[Any]] = {}
    for item in error.errors(include_url=False):
        path = _path(item["loc"], data)
        found.setdefault(path, []).append(item)
    deeper = {path for path in found if any(other != path and is_below(other, path) for other in found)}
    return [_problem(path, items) for path, items in found.items() if path not in deeper]


def _path(loc: tuple[Any, ...], data: Any) -> str:
    """Pydantic's location without the names of union members, which are in no file."""
    path = ""
    for part in loc:
        if (isinstance(data, dict) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data)
        ):
            data, path = data[part], join(path, part)
    return path


def _problem(path: str, items: list[Any]) -> Problem:
    if path.startswith("environment.variables.") and items[0]["type"] == "string_type":
        return Problem(
            path, "must be text, a number, true or false", "value"
        )  # the value may be a secret: it is not shown
    kinds = [item["type"] for item in items]
    if "unexpected_keyword_argument" in kinds:
        parent, _, key = path.rpartition(".")
        return Problem(path, f'unknown key "{key}"{_meant(key, keys_at(parent))}')
    for item in items:
        if item["type"] in _BOUNDS:
            word, name = _BOUNDS[item["type"]]
            return Problem(
                path, f"must be {word} {_plain(item['ctx'][name])}, not {value_text(item['input'])}", "value"
            )
        if item["type"] == "value_error":
            return Problem(path, str(item["ctx"]["error"]), "value")
        if item["type"] == "literal_error":
            allowed = item["ctx"]["expected"].replace("'", "")
            return Problem(
                path, f"must be {allowed}, not {value_text(item['input'])}{_maybe(item['input'], allowed)}", "value"
            )
    if kinds == ["string_type"] and isinstance(items[0]["input"], (bool, int, float)):
        value = json.dumps(items[0]["input"])
        return Problem(path, f'must be text, not {value}; put quotes around it: "{value}"', "value")
    wanted = list(dict.fromkeys(_TYPES.get(kind, "") for kind in kinds))
    if "a number" in wanted and "a whole number" in wanted:
        wanted.remove("a whole number")
    if all(wanted):
        said = wanted[0] if len(wanted) == 1 else ", ".join(wanted[:-1]) + " or " + wanted[-1]
        if items[0]["input"] is None:
            return Problem(path, f"has no value; set {said}, or remove this key", "value")
        return Problem(
            path, f"must be {said}, not {value_text(items[0]['input'])}{_quoted(said, items[0]['input'])}", "value"
        )
    return Problem(path, items[0]["msg"].lower(), "value")


def _plain(bound: float) -> str:
    """0.0 as 0: the bound as a user would write it."""
    return str(int(bound) if bound == int(bound) else bound)


def _meant(key: str, known: list[str]) -> str:
    """Suggest the right section of a key in the wrong place, before any key that only looks like it."""
    own = homes(key)
    return f'; did you mean "{own[0]}.{key}"?' if own else suggestion(key, known)


def homes(key: str) -> list[str]:
    """List the sections that have a key of this name, the outer ones first."""
    return [home for home in _sections() if key in keys_at(home)]


@functools.cache
def _sections() -> list[str]:
    """Key paths of the schema's sections, the outer ones first."""
    found = [""]
    for path in found:
        found += [below for key in keys_at(path) if keys_at(below := join(path, key))]
    return found[1:]


def _quoted(wanted: str, value: Any) -> str:
    """Numbers and truth values in quotes are text to YAML."""
    if not isinstance(value, str):
        return ""
    truth = wanted == "true or false" and value in ("true", "false")
    number = wanted.endswith(" number") and re.fullmatch(r"-?\d+(\.\d+)?", value)
    return "; remove the quotes" if truth or number else ""


def _maybe(value: Any, allowed: str) -> str:
    words = allowed.replace(" or ", ", ").split(", ")
    close = difflib.get_close_matches(value, words, n=1) if isinstance(value, str) else []
    return f'; did you mean "{close[0]}"?' if close else ""


def keys_at(path: str) -> list[str]:
    """List the keys that the schema has below a key path, as they are written in a job file."""
    current: Any = Job
    for part in path.split(".") if path else []:
        fields = {key_name(f): f for f in dataclasses.fields(current)}
        if part not in fields:
            return []
        hints = _hints(current)
        options = [hints[fields[part].name], *typing.get_args(hints[fields[part].name])]
        current = next((o for o in options if dataclasses.is_dataclass(o)), None)
        if current is None:
            return []
    return [key_name(f) for f in dataclasses.fields(current)]


_hints = functools.cache(typing.get_type_hints)


def key_name(field: dataclasses.Field[Any]) -> str:
    """A field's name in a job file: ``pass_`` is ``pass``."""
    return field.name.rstrip("_")
