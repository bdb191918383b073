"""Fill in ``${params.x}`` and OmegaConf's other interpolations when loading, ``${run.x}`` once the run has a directory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from launcher.config.document.problem_list import ProblemList
from launcher.config.document.source import join
from launcher.config.document.validation import suggestion

RUN_KEYS = ("dir", "id", "name")
_MARK = "\ue000run.{}\ue001"  # stands for ${run.x} while OmegaConf resolves the rest


def resolve_interpolations(container: dict[str, Any], faults: ProblemList) -> dict[str, Any]:
    """Return plain values with every interpolation but ``${run.x}`` replaced."""
    try:
        return {key: _quick(value, container, ()) for key, value in container.items()}
    except _NotSimpleError:
        return _resolve(container, faults)


_SIMPLE = re.compile(r"\$\{([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\}")


class _NotSimpleError(Exception):
    """The value needs OmegaConf: for its grammar, or to say what is wrong."""


def _quick(value: Any, container: dict[str, Any], above: tuple[str, ...]) -> Any:
    """Do what OmegaConf does for values that hold nothing but ``${a.b}``, in a hundredth of the time."""
    if isinstance(value, dict):
        return {key: _quick(item, container, above) for key, item in value.items()}
    if isinstance(value, list):
        return [_quick(item, container, above) for item in value]
    if not isinstance(value, str) or ("${" not in value and value != "???"):
        return value
    if value == "???" or "\\" in value or "${" in _SIMPLE.sub("", value):
        raise _NotSimpleError
    if whole := _SIMPLE.fullmatch(value):
        return _quick_key(whole[1], container, above)
    parts = _SIMPLE.split(value)
    parts[1::2] = [_quick_key(path, container, above) for path in parts[1::2]]
    if any(isinstance(part, (dict, list)) for part in parts):
        raise _NotSimpleError
    return "".join(map(str, parts))


def _quick_key(path: str, container: dict[str, Any], above: tuple[str, ...]) -> Any:
    if path in above:
        raise _NotSimpleError
    first, *rest = path.split(".")
    if first == "run":
        if len(rest) == 1 and rest[0] in RUN_KEYS and "run" not in container:
            return f"${{{path}}}"
        raise _NotSimpleError
    node: Any = container
    for part in (first, *rest):
        if not isinstance(node, dict) or part not in node:
            raise _NotSimpleError
        node = node[part]
    return _quick(node, container, (*above, path))


def readable(text: str) -> bool:
    """Tell whether every ``${`` in a text opens an interpolation that OmegaConf can read."""
    if "${" not in text or ("\\" not in text and "${" not in _SIMPLE.sub("", text)):
        return True
    from omegaconf import OmegaConf
    from omegaconf.errors import GrammarParseError

    try:
        OmegaConf.create({"x": text})
    except (GrammarParseError, RecursionError):
        return False
    return True


def _resolve(container: dict[str, Any], faults: ProblemList) -> dict[str, Any]:
    """Resolve with OmegaConf. It is imported here alone: most jobs do not need it, and it takes 70 ms."""
    from omegaconf import OmegaConf

    taken = container.get("run")
    config = OmegaConf.create({**container, "run": {key: _MARK.format(key) for key in RUN_KEYS}})
    result: dict[str, Any] = _plain(config, "", faults)
    del result["run"]
    if taken is not None:
        result["run"] = taken  # an unknown key like any other: validation says so
    return result


def _plain(node: Any, path: str, faults: ProblemList) -> Any:
    from omegaconf import DictConfig, ListConfig

    if isinstance(node, DictConfig):
        return {str(key): _get(node, key, join(path, str(key)), faults) for key in node}
    if isinstance(node, ListConfig):
        return [_get(node, index, join(path, index), faults) for index in range(len(node))]
    if isinstance(node, str):
        return re.sub("\ue000(run\\.\\w+)\ue001", r"${\1}", node)
    return node


def _get(node: Any, key: Any, path: str, faults: ProblemList) -> Any:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if OmegaConf.is_missing(node, key):
        faults.add(path, "is marked ??? and must be set")
        return None
    try:
        return _plain(node[key], path, faults)
    except (OmegaConfBaseException, RecursionError) as error:
        faults.add(path, _interpolation(error, OmegaConf.to_container(node, resolve=False)[key]))  # type: ignore[index,call-overload]
        return None


def _interpolation(error: Exception, text: Any) -> str:
    said = str(error).split("\n")[0]
    if found := re.search(r"Interpolation key '(.*)' not found", said):
        name = found[1]
        if name.startswith("run."):
            return f"${{{name}}} does not exist{suggestion(name, [f'run.{k}' for k in RUN_KEYS])}"
        return f"${{{name}}} names a key that is not set"
    if found := re.search(r"Environment variable '(.*)' not found", said):
        return f"the environment variable {found[1]} is not set"
    if isinstance(error, RecursionError) or "ecursive" in said:
        return f"{text} refers to itself"
    return f"{text} is not valid: {said}"


def interpolate_run(values: Any, run_dir: str | Path, run_id: str, name: str) -> Any:
    """Return a copy of ``values`` (text, lists, mappings) with ``${run.dir}``, ``${run.id}`` and ``${run.name}`` filled in."""
    known = {"dir": str(run_dir), "id": run_id, "name": name}
    if isinstance(values, str):
        return re.sub(r"\$\{run\.(dir|id|name)\}", lambda found: known[found[1]], values)
    if isinstance(values, dict):
        return {key: interpolate_run(value, run_dir, run_id, name) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [interpolate_run(value, run_dir, run_id, name) for value in values]
    return values
