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
from launcher.config.document.source import Problem, is_below, join, value_text

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


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean "x"?``, or nothing where no known word is near."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f'; did you mean "{close[0]}"?' if close else ""


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean "x"?``, or the list of what is allowed."""
    known = list(known)
    return did_you_mean(word, known) or (f"; allowed here: {', '.join(known)}" if known else "")


def describe_errors(error: ValidationError, data: Any, most: int) -> list[Problem]:
    """List one problem a key path, in the order of the schema, of the first ``most`` errors."""
    found: dict[str, list[Any]] = {}
    for item in error.errors(include_url=False)[:most]:
        path = _path(item["loc"], data)
        found.setdefault(path, []).append(item)
    deeper = {path for path in found if any(other != path and is_below(other, path) for other in found)}
    return [
        _unknown_key(path, str(items[0]["loc"][-1]))
        if any(item["type"] == "unexpected_keyword_argument" for item in items)
        else Problem(path, _sentence(path, items), "value")
        for path, items in found.items()
        if path not in deeper
    ]


def _path(loc: tuple[Any, ...], data: Any) -> str:
    """Pydantic's location without the names of union members, which are in no file."""
    path = ""
    for part in loc:
        if (isinstance(data, dict) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data)
        ):
            data, path = data[part], join(path, part)
    return path


def _unknown_key(path: str, key: str) -> Problem:
    above = path.removesuffix(key).rstrip(".")
    if "." in key:
        outer, _, inner = key.partition(".")
        return Problem(path, f'unknown key "{key}"; in a file write {inner} below {outer}, on a line of its own')
    own = homes(key)  # a key in the wrong section is sent to its own, before any key that only looks like it
    meant = f'; did you mean "{own[0]}.{key}"?' if own else suggestion(key, keys_at(above))
    return Problem(path, f'unknown key "{key}"{meant}')


def _sentence(path: str, items: list[Any]) -> str:
    """Say what is wrong with a value."""
    kinds, value = [item["type"] for item in items], items[0]["input"]
    if path.startswith("environment.variables.") and kinds[0] == "string_type":
        if value is None:
            return 'has no value; set it to "" for an empty one, or remove this key'
        return "must be text, a number, true or false"  # the value may be a secret: not shown
    if said := next(filter(None, map(_broken_limit, items)), None):
        return said
    if kinds == ["string_type"] and isinstance(value, (bool, int, float)):
        text = json.dumps(value)
        return f'must be text, not {text}; put quotes around it: "{text}"'
    wanted = list(dict.fromkeys(_TYPES.get(kind, "") for kind in kinds))
    if "a number" in wanted and "a whole number" in wanted:
        wanted.remove("a whole number")
    if not all(wanted):
        return str(items[0]["msg"]).lower()
    said = " or ".join(filter(None, (", ".join(wanted[:-1]), wanted[-1])))
    if value is None:
        return f"has no value; set {said}, or remove this key"
    truth = said == "true or false" and value in ("true", "false")
    number = said.endswith(" number") and isinstance(value, str) and re.fullmatch(r"-?\d+(\.\d+)?", value)
    hint = "; remove the quotes" if truth or number else ""
    return f"must be {said}, not {value_text(value)}{hint}"


def _broken_limit(item: Any) -> str | None:
    """A sentence for a number out of bounds, an unknown choice or a failed check; None for a value of the wrong type."""
    if item["type"] in _BOUNDS:
        word, name = _BOUNDS[item["type"]]
        return f"must be {word} {item['ctx'][name]:.15g}, not {value_text(item['input'])}"
    if item["type"] == "literal_error":
        allowed = item["ctx"]["expected"].replace("'", "")
        meant = did_you_mean(str(item["input"]), allowed.replace(" or ", ", ").split(", "))
        return f"must be {allowed}, not {value_text(item['input'])}{meant}"
    return str(item["ctx"]["error"]) if item["type"] == "value_error" else None


def homes(key: str) -> list[str]:
    """List the sections that have a key of this name, the outer ones first."""
    return [home for home, keys in _sections().items() if home and key in keys]


def keys_at(path: str) -> list[str]:
    """List the keys that the schema has below a key path, as they are written in a job file."""
    return list(_sections().get(path, {}))


def takes_text(path: str) -> bool:
    """Return whether the schema has a key at ``path`` whose only type is text (or null)."""
    home, _, key = path.rpartition(".")
    return {str} == set(_sections().get(home, {}).get(key, ())) - {type(None)}


@functools.cache
def _sections() -> dict[str, dict[str, tuple[Any, ...]]]:
    """The keys of the job ("") and of each section by its key path, the outer ones first, each with its types."""
    found: dict[str, dict[str, tuple[Any, ...]]] = {}
    todo: list[tuple[str, Any]] = [("", Job)]
    for path, section in todo:
        hints = typing.get_type_hints(section)
        found[path] = {
            key_name(f): typing.get_args(hints[f.name]) or (hints[f.name],) for f in dataclasses.fields(section)
        }
        for key, options in found[path].items():
            todo += [(join(path, key), option) for option in options if dataclasses.is_dataclass(option)]
    return found


def key_name(field: dataclasses.Field[Any]) -> str:
    """Return a field's name in a job file: ``pass_`` is ``pass``."""
    return field.name.rstrip("_")
