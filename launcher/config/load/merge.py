"""Merge layers into one mapping: mappings merge, lists are replaced (as OmegaConf does), the command line comes last."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.config.document.problem_list import ProblemList
from launcher.config.document.source import (
    COMMAND_LINE,
    Document,
    Origin,
    Problem,
    is_below,
    join,
    parent,
    read_value,
    value_at,
)
from launcher.config.document.validation import value_text
from launcher.config.load.interpolate import readable
from launcher.config.load.site_profile import Layer

_KEY = re.compile(r"[A-Za-z_][\w-]*(?:\.[\w-]+|\[\d+\])*")


def target_layer(target: str) -> tuple[Layer, Path]:
    """Make a job of a script; its code directory is the working directory where the script is below that."""
    base = Path.cwd()
    if not target.startswith("-m "):
        file = Path(target).expanduser()
        file = file if file.is_absolute() else base / file
        if base not in file.parents:
            base = file.parent
        target = str(file.relative_to(base))
    where = Origin(COMMAND_LINE)
    return Layer(COMMAND_LINE, Document({"script": target}, {"script": where})), base


def command_line(overrides: Sequence[str], script_args: Sequence[str]) -> Layer:
    """Make a layer of overrides; its data is a list of (key, value), applied one by one."""
    document = Document([])
    where = Origin(COMMAND_LINE)
    for text in overrides:
        key, equals, value = text.partition("=")
        said = _wrong_override(text, key, equals)
        if not said:
            data, said = read_value(value, key)
            if not said:
                document.data.append((key, data))
        if said:
            document.problems.append(Problem(key if equals and _KEY.fullmatch(key) else "", said, origin=where))
    if script_args:
        document.data.append(("args", list(script_args)))
    return Layer(COMMAND_LINE, document)


def _wrong_override(text: str, key: str, equals: str) -> str | None:
    if not equals:
        return f'"{text}" is not an override; write key=value, such as resources.nodes=2'
    if key[:1] in "+~" and _KEY.fullmatch(key[1:].lstrip("+")):
        return f'"{text}": remove the "{key[0]}"; write {key.lstrip("+~")}=value'
    if not _KEY.fullmatch(key):
        return f'"{text}" is not an override: "{key}" is not a key; write key=value, such as resources.nodes=2'
    return None


def merge(layers: list[Layer], faults: ProblemList) -> dict[str, Any]:
    """Merge the layers' values: mappings merge, anything else replaces; locked keys do not change."""
    merged: dict[str, Any] = {}
    locked: dict[str, Origin] = {}
    for layer in layers:
        if layer.source == COMMAND_LINE and isinstance(layer.document.data, list):
            _apply(merged, layer.document.data, locked, faults)
        else:
            _check_grammar(layer.document.data, "", faults, layer.document.origins)
            _guard(merged, layer, locked, faults)
            _merge_into(merged, layer.document.data)
            _replace_origins(faults.origin, layer.document)
        for name in layer.locked:
            locked.setdefault(name, Origin(layer.source))
    return merged


def _merge_into(target: dict[str, Any], data: dict[str, Any]) -> None:
    """Merge a copy of ``data``: what is merged later never reaches a document."""
    for key, value in data.items():
        if not isinstance(value, dict):
            target[key] = copy.deepcopy(value)
            continue
        if not isinstance(target.get(key), dict):
            target[key] = {}
        _merge_into(target[key], value)


def _replace_origins(origin: dict[str, Origin], document: Document) -> None:
    for path in document.origins:
        if path.endswith("[0]"):  # a list replaces the one before it as a whole
            for old in [o for o in origin if o.startswith(path[:-3] + "[")]:
                del origin[old]
    origin.update(document.origins)


# --- locks --------------------------------------------------------------------------------------------------------------


def _guard(merged: dict[str, Any], layer: Layer, locked: dict[str, Origin], faults: ProblemList) -> None:
    """A layer may repeat a locked key with the same value, not change it."""
    for path, where in layer.document.origins.items():
        value = value_at(layer.document.data, path)
        if "[" in path or isinstance(value, dict):
            continue  # the whole list, or what is in the mapping, is looked at by itself
        if changed := _changes_locked(merged, path, value, locked):
            faults.add(path, f"is locked by {changed[1]}; remove it here", "key", where)


def _changes_locked(
    merged: dict[str, Any], key: str, value: Any, locked: dict[str, Origin]
) -> tuple[str, Origin] | None:
    """The first locked key that a value would change, and who locked it; mappings merge, anything else replaces."""
    if isinstance(value, dict):
        below = (_changes_locked(merged, join(key, k), v, locked) for k, v in value.items())
        return next((found for found in below if found), None)
    owner = next((o for name, o in locked.items() if is_below(key, name) or is_below(name, key)), None)
    return (key, owner) if owner and value_at(merged, key) != value else None


# --- overrides ----------------------------------------------------------------------------------------------------------


def _apply(
    merged: dict[str, Any], items: list[tuple[str, Any]], locked: dict[str, Origin], faults: ProblemList
) -> None:
    where = Origin(COMMAND_LINE)
    for key, value in items:
        values = {key: value}
        if changed := _changes_locked(merged, key, value, locked):
            faults.add(changed[0], f"is locked by {changed[1]}; remove it here", "key", where)
        elif _check_grammar(values, "", faults, {}, where):
            said = _set(merged, key, values[key])
            if said:
                faults.add(key, said, "key", where)
                continue
            for old in [o for o in faults.origin if o.startswith((key + "[", key + "."))]:
                faults.origin[old] = where
            faults.origin[key] = where


def _set(merged: dict[str, Any], key: str, value: Any) -> str | None:
    """Set one value by key path; a sentence when there is no place for it."""
    *above, last = re.findall(r"[^.\[\]]+|\[\d+\]", key)
    node: Any = merged
    for depth, part in enumerate(above):
        if isinstance(node, dict) and not part.startswith("[") and node.get(part) is None:
            node[part] = [] if [*above, last][depth + 1].startswith("[") else {}
        if said := _misfit(node, part, "".join(above[:depth])):
            return said
        node = node[int(part[1:-1])] if part.startswith("[") else node[part]
    if said := _misfit(node, last, parent(key)):
        return said
    if isinstance(node, dict) and isinstance(value, dict):
        _merge_into(node, {last: value})
    else:
        node[int(last[1:-1]) if last.startswith("[") else last] = value
    return None


def _misfit(node: Any, part: str, path: str) -> str | None:
    if part.startswith("["):
        fits = isinstance(node, list) and int(part[1:-1]) < len(node)
        return None if fits else "the list has no such item"
    return None if isinstance(node, dict) else f"{path} is {value_text(node)}, so no key can be set below it"


def _check_grammar(
    data: Any, path: str, faults: ProblemList, origins: dict[str, Origin], where: Origin | None = None
) -> bool:
    """Find ``${`` that cannot be read, in place: each becomes a problem and an empty text. False when there was one."""
    items = list(data.items()) if isinstance(data, dict) else list(enumerate(data)) if isinstance(data, list) else []
    good = True
    for key, value in items:
        here = str(key) if where and not path else join(path, key)
        if not isinstance(value, str):
            good = _check_grammar(value, here, faults, origins, where) and good
        elif not readable(value):
            said = 'this "${" does not begin an interpolation such as ${params.lr}; write "\\${" for the characters themselves'
            faults.add(here, said, "value", where or origins.get(here))
            data[key] = ""
            good = False
    return good
