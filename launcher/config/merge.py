"""Layers become one mapping, by OmegaConf's rules: mappings merge, lists are replaced, the command line comes last."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from launcher.config.explain import shown
from launcher.config.faults import Report
from launcher.config.site import Layer
from launcher.config.source import COMMAND_LINE, Document, Origin, Problem, join, parent, read_value
from launcher.errors import ConfigError

__all__ = ["command_line", "merge", "target_layer"]

_KEY = re.compile(r"[A-Za-z_][\w-]*(?:\.[\w-]+|\[\d+\])*")


def target_layer(target: str) -> tuple[Layer, Path]:
    """A job with defaults of a script; its code directory is the working directory where the script is below that."""
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
    """Overrides as a layer whose data is a list of (key, value), for they are applied one by one."""
    document = Document([])
    where = Origin(COMMAND_LINE)
    for text in overrides:
        key, equals, value = text.partition("=")
        said = _wrong_override(text, key, equals)
        if not said:
            data, said = read_value(value)
            if not said:
                document.data.append((key, data))
        if said:
            document.problems.append(Problem(key if equals and _KEY.fullmatch(key) else "", said, origin=where))
    if script_args:
        document.data.append(("args", list(script_args)))
    return Layer(COMMAND_LINE, document)


def _wrong_override(text: str, key: str, equals: str) -> str | None:
    if not equals:
        return f'"{text}" is no override; write key=value, such as resources.nodes=2'
    if key[:1] in "+~" and _KEY.fullmatch(key[1:].lstrip("+")):
        return f'"{text}": leave out the "{key[0]}"; write {key.lstrip("+~")}=value'
    if not _KEY.fullmatch(key):
        return f'"{text}" is no override: "{key}" is no key; write key=value, such as resources.nodes=2'
    return None


def merge(layers: list[Layer], report: Report) -> dict[str, Any]:
    """The layers' values by OmegaConf's rules (mappings merge, lists are replaced), locked keys guarded."""
    merged = OmegaConf.create({})
    locked: dict[str, Origin] = {}
    for layer in layers:
        if layer.source == COMMAND_LINE and isinstance(layer.document.data, list):
            merged = _apply(merged, layer.document.data, locked, report)
        else:
            _check_grammar(layer.document.data, "", layer.document.origins, report)
            _guard(merged, layer, locked, report)
            merged = _merged(merged, layer.document.data)
            _replace_origins(report.origin, layer.document)
        for name in layer.locked:
            locked.setdefault(name, Origin(layer.source))
    return dict(OmegaConf.to_container(merged, resolve=False))  # type: ignore[arg-type]


def _merged(config: DictConfig, data: Any) -> DictConfig:
    result = OmegaConf.merge(config, OmegaConf.create(data))
    if not isinstance(result, DictConfig):
        raise ConfigError("the job must be a mapping of keys to values")
    return result


def _replace_origins(origin: dict[str, Origin], document: Document) -> None:
    for path in document.origins:
        if path.endswith("[0]"):  # a list replaces the one before it as a whole
            for old in [o for o in origin if o.startswith(path[:-3] + "[")]:
                del origin[old]
    origin.update(document.origins)


def _guard(config: DictConfig, layer: Layer, locked: dict[str, Origin], report: Report) -> None:
    """A layer may repeat a locked key with the same value, not change it."""
    for path, where in layer.document.origins.items():
        owner = _locked_by(path, locked)
        if owner and not isinstance(new := _at(layer.document.data, path), dict) and new != _at(config, path):
            report.add(path, f"is locked by {owner} and cannot be changed", "key", where)


def _locked_by(path: str, locked: dict[str, Origin]) -> Origin | None:
    return next((o for name, o in locked.items() if path == name or path.startswith((name + ".", name + "["))), None)


def _changes_locked(config: DictConfig, key: str, value: Any, locked: dict[str, Origin]) -> tuple[str, Origin] | None:
    """The first locked key that an override would change, and who locked it; mappings merge, anything else replaces."""
    if isinstance(value, dict):
        below = (_changes_locked(config, join(key, k), v, locked) for k, v in value.items())
        return next((found for found in below if found), None)
    owner = _locked_by(key, locked) or next((o for name, o in locked.items() if name.startswith(key + ".")), None)
    return (key, owner) if owner and _at(config, key) != value else None


def _at(data: Any, path: str) -> Any:
    """The plain value at a key path, or None."""
    if isinstance(data, (DictConfig, ListConfig)):
        data = OmegaConf.to_container(data, resolve=False)
    for part in re.findall(r"[^.\[\]]+", path):
        if isinstance(data, dict) and part in data:
            data = data[part]
        elif isinstance(data, list) and part.isdecimal() and int(part) < len(data):
            data = data[int(part)]
        else:
            return None
    return data


def _apply(config: DictConfig, items: list[tuple[str, Any]], locked: dict[str, Origin], report: Report) -> DictConfig:
    where = Origin(COMMAND_LINE)
    for key, value in items:
        if changed := _changes_locked(config, key, value, locked):
            path, owner = changed
            report.add(path, f"is locked by {owner} and cannot be changed", "key", where)
            continue
        bad = len(report.problems)
        values = {key: value}
        _check_grammar(values, "", {}, report, where)
        if len(report.problems) > bad:
            continue
        above = parent(key)
        if above and _at(config, above) is not None and not isinstance(_at(config, above), (dict, list)):
            report.add(
                key, f"does not fit: {above} is {shown(_at(config, above))}, which has nothing below it", "key", where
            )
            continue
        try:
            OmegaConf.update(config, key, values[key], merge=True, force_add=True)
        except (OmegaConfBaseException, TypeError, IndexError, ValueError):
            report.add(key, "does not fit: there is no list that long", "key", where)
            continue
        for old in [o for o in report.origin if o.startswith((key + "[", key + "."))]:
            report.origin[old] = where
        report.origin[key] = where
    return config


def _check_grammar(
    data: Any, path: str, origins: dict[str, Origin], report: Report, where: Origin | None = None
) -> None:
    """Find ``${`` that OmegaConf cannot read, in place: each becomes a problem and an empty text."""
    items = list(data.items()) if isinstance(data, dict) else list(enumerate(data)) if isinstance(data, list) else []
    for key, value in items:
        here = str(key) if where and not path else join(path, key)
        if isinstance(value, str) and "${" in value:
            try:
                OmegaConf.create({"x": value})
            except GrammarParseError:
                said = (
                    'this "${" opens no interpolation such as ${params.lr}; write "\\${" for the characters themselves'
                )
                report.add(here, said, "value", where or origins.get(here))
                data[key] = ""
        else:
            _check_grammar(value, here, origins, report, where)
