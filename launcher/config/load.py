"""From files and overrides to a checked job: site profiles < job file < command line.

Everything wrong is reported at once, each fault as ``file:line:column: key.path: what is wrong``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError

from launcher.config.explain import explain, nearest
from launcher.config.schema import Job
from launcher.config.site import Layer, SiteProfile, read_document, read_layers, site_paths
from launcher.config.source import COMMAND_LINE, Document, Origin, Problem, join, read_value
from launcher.errors import CodeError, ConfigError

__all__ = ["LoadedJob", "interpolate_run", "load_job", "load_values"]

RUN_KEYS = ("dir", "id", "name")
_MARK = "\ue000run.{}\ue001"  # stands for ${run.x} while OmegaConf resolves the rest
_KEY = re.compile(r"[A-Za-z_][\w-]*(?:\.[\w-]+|\[\d+\])*")


@dataclass(frozen=True, kw_only=True)
class LoadedJob:
    """A job that has passed every check here."""

    job: Job
    """``${params.x}`` resolved; ``${run.dir}``, ``${run.id}`` and ``${run.name}`` left for `interpolate_run`."""
    container: dict[str, Any]
    """The merged values as they were written, before interpolation."""
    origin: dict[str, Origin]
    """Where each key path was set last."""
    base_dir: Path
    """What relative paths of the job are relative to: the job file's directory, absolute."""
    source: str
    """The job file as the user named it, or "command line"."""
    site: SiteProfile = field(default_factory=SiteProfile)
    """The merged site profile."""

    @property
    def name(self) -> str:
        """``job.name``, or a name made from what the job runs."""
        return self.job.name or default_name(self.job)

    @property
    def code_dir(self) -> Path:
        """The code directory, absolute."""
        return (self.base_dir / Path(self.job.code.dir).expanduser()).resolve()

    @property
    def yaml(self) -> str:
        """The merged job as a YAML text that loads to the same job."""
        text: str = yaml.safe_dump(self.container, sort_keys=False, allow_unicode=True, width=120)
        return text if self.container else "{}\n"


def load_job(
    path: str | Path | None,
    overrides: Sequence[str] = (),
    *,
    target: str | None = None,
    script_args: Sequence[str] = (),
    sites: list[Path] | None = None,
    check_code: bool = True,
) -> LoadedJob:
    """Load the job file ``path``, or make a job with defaults of ``target`` (a ``.py`` file or ``-m module``).

    ``overrides`` are ``key.path=value``; ``script_args`` replace ``args``; ``sites`` replaces the site profiles found
    on this machine. Raises ConfigError, or CodeError when the named code alone is at fault.
    """
    profile, layers = read_layers(site_paths() if sites is None else sites)
    base = Path.cwd()
    if target is not None:
        layer, base = _target_layer(target)
        layers.append(layer)
    elif path is not None:
        layers.append(Layer(str(path), read_document(Path(path))))
        base = Path(path).absolute().parent
    else:
        raise ConfigError("name a job file, a .py file or -m module")
    layers.append(_command_line(overrides, script_args))
    source = str(path) if path is not None else COMMAND_LINE
    return load_layers(layers, base, source, profile, check_code=check_code)


def load_values(
    values: dict[str, Any], base_dir: Path, *, overrides: Sequence[str] = (), source: str = "job"
) -> LoadedJob:
    """Check a job given as plain values (as in ``LoadedJob.container``), without any site profile."""
    layers = [Layer(source, Document(json.loads(json.dumps(values)))), _command_line(overrides, ())]
    return load_layers(layers, base_dir, source, SiteProfile())


def load_layers(
    layers: list[Layer], base_dir: Path, source: str, profile: SiteProfile, *, check_code: bool = True
) -> LoadedJob:
    """Merge, resolve, validate and check; raise everything that is wrong at once."""
    from launcher.config import code, rules

    report = _Report(source)
    for layer in layers:
        report.problems += layer.document.problems
    container = _merge(layers, report)
    report.stop_if(_unreadable)  # then every further complaint would mislead
    resolved = _resolve(container, report)
    job = _validate(resolved, report)
    report.problems += rules.check(resolved, job)
    loaded = None
    if job is not None:
        loaded = LoadedJob(
            job=job, container=container, origin=report.origin, base_dir=base_dir, source=source, site=profile
        )
        if check_code and not any(_concerns_code(p) for p in report.problems):
            report.problems += code.check(job, loaded.code_dir)
    report.stop_if(lambda _: True)
    if loaded is None:
        raise ConfigError(f"{source}: the job is not valid")
    return loaded


def _unreadable(problem: Problem) -> bool:
    return not problem.path and problem.origin is not None and problem.origin.source != COMMAND_LINE


def _concerns_code(problem: Problem) -> bool:
    return problem.path.split(".")[0] in ("", "task", "function", "script", "code", "params", "args")


class _Report:
    """Problems as they come up, and where every key was set last."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.origin: dict[str, Origin] = {}
        self.problems: list[Problem] = []

    def add(self, path: str, message: str, place: str = "value", origin: Origin | None = None) -> None:
        self.problems.append(Problem(path, message, place, origin))

    def line(self, problem: Problem) -> str:
        where = problem.origin or self.nearest(problem.path)
        head = where.at(problem.place)
        return f"{head}: {problem.path}: {problem.message}" if problem.path else f"{head}: {problem.message}"

    def nearest(self, path: str) -> Origin:
        while path and path not in self.origin:
            path = parent(path)
        start = Origin(self.source) if self.source == COMMAND_LINE else Origin(self.source, 1, 1, 1, 1)
        return self.origin.get(path, start) if path else start

    def stop_if(self, serious: Any) -> None:
        """Raise every problem so far when one of them is serious."""
        if not any(serious(p) for p in self.problems):
            return
        lines = dict.fromkeys(self.line(p) for p in sorted(self.problems, key=self._order))
        raise (CodeError if all(p.code for p in self.problems) else ConfigError)(list(lines))

    def _order(self, problem: Problem) -> tuple[str, int, int]:
        where = problem.origin or self.nearest(problem.path)
        return where.source, where.value_line or where.line, where.value_column or where.column


def parent(path: str) -> str:
    """The key path above: ``a.b[0]`` is below ``a.b`` below ``a``; "" is the top."""
    return re.sub(r"(?:\[\d+\]|(?:^|\.)[^.\[\]]*)$", "", path)


# --- layers -----------------------------------------------------------------------------------------------------------


def _target_layer(target: str) -> tuple[Layer, Path]:
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


def _command_line(overrides: Sequence[str], script_args: Sequence[str]) -> Layer:
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


def _merge(layers: list[Layer], report: _Report) -> dict[str, Any]:
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


def _guard(config: DictConfig, layer: Layer, locked: dict[str, Origin], report: _Report) -> None:
    """A layer may repeat a locked key with the same value, not change it."""
    for path, where in layer.document.origins.items():
        owner = _locked_by(path, locked)
        if owner and not isinstance(new := _at(layer.document.data, path), dict) and new != _at(config, path):
            report.add(path, f"is locked by {owner} and cannot be changed", "key", where)


def _locked_by(path: str, locked: dict[str, Origin]) -> Origin | None:
    return next((o for name, o in locked.items() if path == name or path.startswith((name + ".", name + "["))), None)


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


def _apply(config: DictConfig, items: list[tuple[str, Any]], locked: dict[str, Origin], report: _Report) -> DictConfig:
    where = Origin(COMMAND_LINE)
    for key, value in items:
        owner = _locked_by(key, locked) or next((o for n, o in locked.items() if n.startswith(key + ".")), None)
        if owner and _at(config, key) != value:
            report.add(key, f"is locked by {owner} and cannot be changed", "key", where)
            continue
        bad = len(report.problems)
        values = {key: value}
        _check_grammar(values, "", {}, report, where)
        if len(report.problems) > bad:
            continue
        try:
            OmegaConf.update(config, key, values[key], merge=True, force_add=True)
        except (OmegaConfBaseException, TypeError, IndexError, ValueError):
            report.add(key, "does not fit: what is above this key is no mapping or list that long", "key", where)
            continue
        for old in [o for o in report.origin if o.startswith((key + "[", key + "."))]:
            report.origin[old] = where
        report.origin[key] = where
    return config


def _check_grammar(
    data: Any, path: str, origins: dict[str, Origin], report: _Report, where: Origin | None = None
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


# --- interpolation ----------------------------------------------------------------------------------------------------


def _resolve(container: dict[str, Any], report: _Report) -> dict[str, Any]:
    """Plain values with every interpolation but ``${run.x}`` replaced."""
    taken = container.get("run")
    config = OmegaConf.create({**container, "run": {key: _MARK.format(key) for key in RUN_KEYS}})
    result: dict[str, Any] = _plain(config, "", report)
    del result["run"]
    if taken is not None:
        result["run"] = taken  # an unknown key like any other: validation says so
    return result


def _plain(node: Any, path: str, report: _Report) -> Any:
    if isinstance(node, DictConfig):
        return {str(k): _plain(_get(node, k, join(path, str(k)), report), join(path, str(k)), report) for k in node}
    if isinstance(node, ListConfig):
        return [_plain(_get(node, i, join(path, i), report), join(path, i), report) for i in range(len(node))]
    if isinstance(node, str):
        return re.sub("\ue000(run\\.\\w+)\ue001", r"${\1}", node)
    return node


def _get(node: Any, key: Any, path: str, report: _Report) -> Any:
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


# --- validation -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[Job]:
    return TypeAdapter(Job)


def _validate(values: dict[str, Any], report: _Report) -> Job | None:
    """The job, or None when it has problems. JSON: only there does strict pydantic take enums by value."""
    try:
        return _adapter().validate_json(json.dumps(values))
    except ValidationError as error:
        report.problems += explain(error, values)
        return None


def default_name(job: Job) -> str:
    """A run's name from what it runs: ``train`` of train.py, ``package.module``, ``Class``."""
    text = job.script or job.task or job.function or "job"
    if text.startswith("-m"):
        text = text[2:].strip()
    elif job.script:
        text = Path(text).stem
    else:
        text = text.rpartition(":")[2]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:40] or "job"


def argument_texts(args: Sequence[str | int | float | bool]) -> list[str]:
    """A script's arguments as text, as YAML writes them: ``true``, not ``True``."""
    return [str(a).lower() if isinstance(a, bool) else str(a) for a in args]


def renamed(loaded: LoadedJob, name: str) -> LoadedJob:
    """The same job under another name."""
    return replace(loaded, job=replace(loaded.job, name=name), container={**loaded.container, "name": name})
