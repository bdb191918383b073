"""Merge layers into one mapping: mappings merge, lists are replaced (as OmegaConf does), the command line comes last."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
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
    nearest,
    read_value,
    value_at,
    value_text,
)
from launcher.config.document.validation import takes_text
from launcher.config.load.interpolate import readable
from launcher.config.load.site_profile import Layer

_KEY = re.compile(r"[A-Za-z_][\w-]*(?:\.[\w-]+|\[\d+\])*")


def target_layer(target: str) -> tuple[Layer, Path]:
    """Make a job of a script; its code directory is the working directory where the script is below that."""
    base = Path.cwd()
    if not target.startswith("-m "):
        file = Path(os.path.expanduser(target))
        file = file if file.is_absolute() else base / file
        if base not in file.parents:
            base = file.parent
        target = str(file.relative_to(base))
    return Layer(COMMAND_LINE, Document([("script", target)])), base


def command_line(overrides: Sequence[str], script_args: Sequence[str]) -> Layer:
    """Make a layer of overrides; its data is a list of (key, value), applied one by one."""
    document = Document([])
    where = Origin(COMMAND_LINE)
    for text in overrides:
        key, equals, value = text.partition("=")
        if said := _wrong_override(text, key, equals):
            document.problems.append(Problem("", said, origin=where))
            continue
        data, said = read_value(value, key)
        if isinstance(data, (bool, int, float)) and takes_text(key):
            data = value  # slurm.account=1234: the shell has eaten whatever quotes there were
        elif not value and key.startswith("environment.variables."):
            data = ""  # as in FOO= of a shell; of other keys it is null, which unsets them
        if said:
            document.problems.append(Problem(key, said, origin=where))
        else:
            document.data.append((key, data))
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
    """Merge the layers' values: mappings merge, anything else replaces; locked keys do not change.

    A ``${`` that cannot be read becomes a problem and an empty text.
    """
    merged: dict[str, Any] = {}
    locked: dict[str, Origin] = {}
    for layer in layers:
        data, origins = layer.document.data, layer.document.origins
        if isinstance(data, list):
            for key, value in data:
                _override(merged, key, value, locked, faults)
        else:
            for path, owner in _locked_changes(merged, "", data, locked):
                faults.add(path, f"is locked by {owner}; remove it here", "key", origins.get(path))
            _merge_into(merged, data, "", faults, origins)
            _replace_origins(faults.origin, origins)
        for name in layer.locked:
            locked.setdefault(name, Origin(layer.source))
    return merged


def refuse_locked_axes(layers: list[Layer], axes: Iterable[str], faults: ProblemList) -> None:
    """Refuse each key of a sweep that a layer has locked, or that is above or below such a key."""
    for axis in axes:
        owners = (
            layer.source for layer in layers for name in layer.locked if is_below(axis, name) or is_below(name, axis)
        )
        if owner := next(owners, None):
            faults.add(f"sweep.{axis}", f"{axis} is locked by {owner}; remove it here", "key")


def _merge_into(
    target: dict[str, Any], data: dict[str, Any], path: str, faults: ProblemList, origins: dict[str, Origin]
) -> None:
    """Merge a copy of ``data``: what is merged later never reaches a document."""
    for key, value in data.items():
        here = join(path, key)
        if isinstance(value, dict):
            if not isinstance(target.get(key), dict):
                target[key] = {}
            _merge_into(target[key], value, here, faults, origins)
        else:
            target[key] = _copied(value, here, faults, origins)


def _copied(value: Any, path: str, faults: ProblemList, origins: dict[str, Origin]) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item, join(path, key), faults, origins) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item, join(path, index), faults, origins) for index, item in enumerate(value)]
    if isinstance(value, str) and not readable(value):
        said = 'this "${" does not begin an interpolation such as ${params.lr}; write \\${ for these characters, \\\\${ in double quotes'
        faults.add(path, said, "value", nearest(origins, path))
        return ""
    return value


def _replace_origins(origin: dict[str, Origin], new: dict[str, Origin]) -> None:
    for path in new:
        if path.endswith("[0]"):  # a list replaces the one before it as a whole
            for old in [o for o in origin if o.startswith(path[:-3] + "[")]:
                del origin[old]
    origin.update(new)


def _locked_changes(
    merged: dict[str, Any], path: str, value: Any, locked: dict[str, Origin]
) -> Iterator[tuple[str, Origin]]:
    """Yield each locked key that a value would change, and who locked it; the same value again is no change."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _locked_changes(merged, join(path, key), item, locked)
    elif value_at(merged, path) != value:
        owner = next((o for name, o in locked.items() if is_below(path, name) or is_below(name, path)), None)
        if owner:
            yield path, owner


# --- overrides ----------------------------------------------------------------------------------------------------------


def _override(merged: dict[str, Any], key: str, value: Any, locked: dict[str, Origin], faults: ProblemList) -> None:
    where = Origin(COMMAND_LINE)
    changes = list(_locked_changes(merged, key, value, locked))
    for path, owner in changes:
        faults.add(path, f"is locked by {owner}; remove it here", "key", where)
    if changes:
        return
    if said := _set(merged, key, value, faults):
        faults.add(key, said, "key", where)
        return
    for old in [o for o in faults.origin if o.startswith((key + "[", key + "."))]:
        faults.origin[old] = where
    faults.origin[key] = where


def _set(merged: dict[str, Any], key: str, value: Any, faults: ProblemList) -> str | None:
    """Set one value by key path; a sentence when there is no place for it."""
    parts = re.findall(r"[^.\[\]]+|\[\d+\]", key)
    node: Any = merged
    above = ""
    for depth, part in enumerate(parts):
        index = int(part[1:-1]) if part.startswith("[") else None
        if index is not None and not (isinstance(node, list) and index < len(node)):
            return "the list has no such item"
        if index is None and not isinstance(node, dict):
            return f"{above} is {value_text(node)}, so no key can be set below it"
        if depth < len(parts) - 1:
            if index is None and node.get(part) is None:
                node[part] = [] if parts[depth + 1].startswith("[") else {}
            above = join(above, part if index is None else index)
            node = node[part if index is None else index]
        elif index is None:
            _merge_into(node, {part: value}, above, faults, {key: Origin(COMMAND_LINE)})
        else:
            node[index] = _copied(value, key, faults, {key: Origin(COMMAND_LINE)})
    return None
