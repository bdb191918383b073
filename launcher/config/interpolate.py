"""``${params.x}`` and OmegaConf's other interpolations when loading; ``${run.x}`` once the run has a directory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.config.explain import nearest
from launcher.config.faults import Report
from launcher.config.source import join

__all__ = ["interpolate_run", "resolve"]

RUN_KEYS = ("dir", "id", "name")
_MARK = "\ue000run.{}\ue001"  # stands for ${run.x} while OmegaConf resolves the rest


def resolve(container: dict[str, Any], report: Report) -> dict[str, Any]:
    """Plain values with every interpolation but ``${run.x}`` replaced."""
    taken = container.get("run")
    config = OmegaConf.create({**container, "run": {key: _MARK.format(key) for key in RUN_KEYS}})
    result: dict[str, Any] = _plain(config, "", report)
    del result["run"]
    if taken is not None:
        result["run"] = taken  # an unknown key like any other: validation says so
    return result


def _plain(node: Any, path: str, report: Report) -> Any:
    if isinstance(node, DictConfig):
        return {str(k): _plain(_get(node, k, join(path, str(k)), report), join(path, str(k)), report) for k in node}
    if isinstance(node, ListConfig):
        return [_plain(_get(node, i, join(path, i), report), join(path, i), report) for i in range(len(node))]
    if isinstance(node, str):
        return re.sub("\ue000(run\\.\\w+)\ue001", r"${\1}", node)
    return node


def _get(node: Any, key: Any, path: str, report: Report) -> Any:
    if OmegaConf.is_missing(node, key):
        report.add(path, "is marked ??? and must be given")
        return None
    try:
        return node[key]
    except (OmegaConfBaseException, RecursionError) as error:
        report.add(path, _interpolation(error, OmegaConf.to_container(node, resolve=False)[key]))  # type: ignore[index,call-overload]
        return None


def _interpolation(error: Exception, text: Any) -> str:
    said = str(error).split("\n")[0]
    if found := re.search(r"Interpolation key '(.*)' not found", said):
        name = found.group(1)
        if name.startswith("run."):
            return f"there is no ${{{name}}}{nearest(name, [f'run.{k}' for k in RUN_KEYS])}"
        return f"${{{name}}} names a key that is not there"
    if found := re.search(r"Environment variable '(.*)' not found", said):
        return f"the environment variable {found.group(1)} is not set"
    if isinstance(error, RecursionError) or "ecursive" in said:
        return f"{text} refers to itself"
    return f"{text} cannot be resolved: {said}"


def interpolate_run(values: Any, run_dir: str | Path, run_id: str, name: str) -> Any:
    """A copy of ``values`` (text, lists, mappings) with ``${run.dir}``, ``${run.id}`` and ``${run.name}`` filled in."""
    known = {"dir": str(run_dir), "id": run_id, "name": name}
    if isinstance(values, str):
        return re.sub(r"\$\{run\.(dir|id|name)\}", lambda found: known[found.group(1)], values)
    if isinstance(values, dict):
        return {key: interpolate_run(value, run_dir, run_id, name) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [interpolate_run(value, run_dir, run_id, name) for value in values]
    return values
