"""Load a job from files and overrides and check it: site profiles < job file < command line.

Every fault is reported at once, as ``file:line:column: key.path: what is wrong``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from launcher.config.document.problem_list import ProblemList
from launcher.config.document.schema import Job
from launcher.config.document.size_limit import SizeLimit
from launcher.config.document.source import COMMAND_LINE, Origin, Problem, dump_yaml, join, nearest
from launcher.config.document.texts import leaves, wrong_text
from launcher.config.document.validation import describe_errors
from launcher.config.load.interpolate import limit_for, resolve_interpolations
from launcher.config.load.merge import command_line, merge, refuse_locked_axes, target_layer
from launcher.config.load.site_profile import Layer, SiteProfile, read_document, read_layers, site_paths
from launcher.config.load.sweep import Point, axes, expand, flatten, read_flags, set_values
from launcher.config.load.trust import doubt, doubt_of_job
from launcher.errors import ConfigError
from launcher.frozen import frozen

_NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
_MOST_OF_POINTS = 64 << 20
"""Characters that the values of all points of a sweep may take: each point is a job of its own."""
_MOST_FAULTS = 100
"""A file with more wrong keys is none that was meant for a job: the first of them are enough."""
_HALF = re.compile("[\ud800-\udfff]")
"""Half a character."""


@frozen(kw_only=True)
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
    doubt: str = ""
    """Whose else the job file or the code may be; empty where they are the user's own, or the user vouches for them."""
    trusted: bool = False
    """The user vouches for the job and its code."""

    @property
    def name(self) -> str:
        """``job.name``, or a name made from what it runs: ``train`` of train.py, ``package.module``, ``Class``."""
        job = self.job
        if job.name:
            return job.name
        text = job.script or job.task or job.function or "job"
        if text.startswith("-m"):
            text = text[2:].strip()
        elif job.script:
            text = Path(text).stem
        else:
            text = text.rpartition(":")[2]
        return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:40] or "job"

    @property
    def code_dir(self) -> Path:
        """The code directory, absolute."""
        return (self.base_dir / os.path.expanduser(self.job.code.dir)).resolve()

    @property
    def executed(self) -> list[Path]:
        """The folder and the script that the job runs; the other files are known once the folder was read (`CodeFacts.doubt`)."""
        script = self.job.script or ""
        return [self.code_dir, *([] if script.startswith("-m") else [self.code_dir / script])]

    @contextlib.contextmanager
    def placing(self) -> Iterator[None]:
        """Put the place where a key was set in front of faults raised inside as ``key.path: what is wrong``."""
        try:
            yield
        except ConfigError as error:
            placed = []
            for problem in error.problems:
                where = nearest(self.origin, problem.partition(":")[0])
                placed.append(f"{where.at('value')}: {problem}" if where else problem)
            raise type(error)(placed) from None

    @property
    def yaml(self) -> str:
        """The merged job, as a YAML text that loads to the same job."""
        return dump_yaml(self.container)


def load_job(
    path: str | Path | None,
    overrides: Sequence[str] = (),
    *,
    target: str | None = None,
    script_args: Sequence[str] = (),
    sites: list[Path] | None = None,
    sweep: Sequence[str] = (),
    check_code: bool = True,
) -> LoadedJob:
    """Load the job file ``path``, or make a job with defaults of ``target`` (a ``.py`` file or ``-m module``).

    ``overrides`` are ``key.path=value``; ``script_args`` replace ``args``; ``sites`` replaces the site profiles found
    on this machine; ``sweep`` are ``key=a,b`` and ``key=range(5)``, and with a sweep the job is its first point
    (`point_jobs` gives them all). Raises ConfigError, or CodeError when the named code alone is at fault.
    """
    profile, layers = read_layers(site_paths() if sites is None else sites)
    base, strange = Path.cwd(), ""
    if target is not None:
        layer, base = target_layer(target)
        layers.append(layer)
    elif path is not None:
        document = read_document(Path(path))
        strange = doubt_of_job(Path(path), document)
        layers.append(Layer(str(path), document))
        base = Path(path).absolute().parent
    else:
        raise ConfigError("no job is named; name a job file, a .py file or -m MODULE")
    layers.append(command_line(overrides, script_args))
    source = str(path) if path is not None else COMMAND_LINE
    loaded = load_layers(layers, base, source, profile, sweep=sweep, check_code=check_code)
    return replace(loaded, doubt=strange or doubt(loaded.executed))


def site_job(sites: list[Path] | None = None) -> Job:
    """Return an empty job on this machine: the site profiles' values, else the defaults.

    A wrong value is left out: loading a job reports it, with its place.
    """
    faults = ProblemList("site profile")
    _, layers = read_layers(site_paths() if sites is None else sites)
    return check_values(merge(layers, faults), faults) if layers else Job()


def load_layers(
    layers: list[Layer],
    base_dir: Path,
    source: str,
    profile: SiteProfile,
    *,
    sweep: Sequence[str] = (),
    check_code: bool = True,
) -> LoadedJob:
    """Merge, resolve, validate and check the layers; raise every fault at once."""
    from launcher.config.check import named_code

    faults = ProblemList(source)
    for layer in layers:
        faults.problems += layer.document.problems
    container = merge(layers, faults)
    _add_sweep(container, sweep, faults)
    if isinstance(container.get("sweep"), dict):
        refuse_locked_axes(layers, container["sweep"], faults)
    # Where a file cannot be read every further complaint would mislead.
    faults.stop_if(lambda p: not p.path and p.origin is not None and p.origin.source != COMMAND_LINE)
    job = check_values(_first_point(container, faults), faults)
    tops = {p.path.split(".")[0] for p in faults.problems if p.path or p.origin is None}
    loaded = LoadedJob(
        job=job, container=container, origin=faults.origin, base_dir=base_dir, source=source, site=profile
    )
    if check_code and tops.isdisjoint(("", "task", "function", "script", "code", "params")):
        faults.problems += named_code.check_code(job, loaded.code_dir)
    faults.stop_if(lambda _: True)
    return loaded


def _add_sweep(container: dict[str, Any], flags: Sequence[str], faults: ProblemList) -> None:
    """Bring ``sweep`` into the form of key paths and values, those of the command line last."""
    found, problems = read_flags(flags)
    faults.problems += problems
    written = container.get("sweep") or {}
    if (found or written) and isinstance(written, dict):
        given: dict[str, Any] = {}
        for key, values in flatten(written):
            if key in given:
                faults.add(f"sweep.{key}", f"{key} is set twice under sweep; remove one", "key")
            given[key] = values
        container["sweep"] = given | found
    faults.origin.update({f"sweep.{key}": Origin(COMMAND_LINE) for key in found})


def _first_point(container: dict[str, Any], faults: ProblemList) -> dict[str, Any]:
    """Return the values of a sweep's first point: keys that are only swept are there, as for every point."""
    written = container.get("sweep")
    if not isinstance(written, dict):
        return container
    found, problems = axes(written)
    faults.problems += problems
    faults.origin.update({key: faults.nearest(f"sweep.{key}") for key in found})
    return set_values(container, {key: values[0] for key, values in found.items()})


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[Job]:
    """Return the validator of a job. Plugins of pydantic are left out: looking for them reads the metadata of every package here."""
    before = os.environ.get(_NO_PLUGINS)
    os.environ[_NO_PLUGINS] = "__all__"
    try:
        return TypeAdapter(Job)
    finally:
        if before is None:
            del os.environ[_NO_PLUGINS]
        else:
            os.environ[_NO_PLUGINS] = before


def check_values(container: dict[str, Any], faults: ProblemList, limit: SizeLimit | None = None) -> Job:
    """Resolve and validate merged values, which take from ``limit``; faults go into the problem list.

    The job has defaults where a value is wrong, so that the rules between the right ones still apply. Raises ConfigError when
    the values are larger, or the faults more, than a job's can be.
    """
    from launcher.config.check import rules

    values = resolve_interpolations(container, faults, limit)
    halves = [  # no encoding and so no validator accepts them
        Problem(path, "holds a lone surrogate (half a character), which no file can hold", "value")
        for path, value in leaves(values)
        if isinstance(value, str) and _HALF.search(value)
    ]
    faults.problems += halves
    values = _without(values, {p.path for p in halves})
    try:
        job = _parse(values)
    except ValidationError as error:
        known = {p.path for p in faults.problems if p.path}
        found = describe_errors(error, values, _MOST_FAULTS)
        faults.problems += [p for p in found if p.path not in known]
        too_many = error.error_count() > _MOST_FAULTS
        faults.stop_if(lambda _: too_many)
        try:
            job = _parse(_without(values, {p.path for p in found}))
        except ValidationError:  # a fault that only appears beside others: what was found is enough
            job = Job()
    wrong = {p.path for p in faults.problems if p.path}
    faults.problems += rules.check_rules(_without(values, wrong), job, wrong)
    return job


def _parse(values: dict[str, Any]) -> Job:
    """Validate as JSON: of Python values, strict pydantic takes no mapping for a section."""
    return _adapter().validate_json(json.dumps(values))


def _without(values: Any, paths: set[str], path: str = "") -> Any:
    """Return a copy without what lies at the key paths; list items are dropped with their list."""
    if not isinstance(values, dict):
        return values
    gone = {path.partition("[")[0] for path in paths}
    return {k: _without(v, paths, join(path, k)) for k, v in values.items() if join(path, k) not in gone}


def argument_texts(args: Sequence[str | int | float | bool]) -> list[str]:
    """Return a script's arguments as text, as YAML writes them: ``true``, not ``True``."""
    return [str(a).lower() if isinstance(a, bool) else str(a) for a in args]


def renamed(loaded: LoadedJob, name: str) -> LoadedJob:
    """Return the same job under another name. Raises ConfigError when no job may have it."""
    if said := wrong_text("name", name):
        raise ConfigError(f"{COMMAND_LINE}: name: {said}")
    return replace(loaded, job=replace(loaded.job, name=name), container={**loaded.container, "name": name})


# --- sweeps -------------------------------------------------------------------------------------------------------------


def point_jobs(loaded: LoadedJob) -> list[tuple[Point, LoadedJob]]:
    """Return each point as a checked job of its own, named after the base job and the point. Raises ConfigError or CodeError.

    The parameter names were checked with the base job, which is the first point.
    """
    faults = ProblemList(loaded.source)
    found = []
    base = {key: value for key, value in loaded.container.items() if key != "sweep"}
    limit = limit_for(_MOST_OF_POINTS)
    for point in expand(loaded.job.sweep).points:
        name = f"{loaded.name[: 63 - len(point.label)].rstrip('-._')}-{point.label}"
        container = {**set_values(base, point.overrides), "name": name}
        faults.origin = loaded.origin
        faults.origin = {**loaded.origin, **{k: faults.nearest(f"sweep.{k}") for k in point.overrides}}
        before = len(faults.problems)
        job = check_values(container, faults, limit)
        faults.problems[before:] = [  # a point's fault points at the sweep's own place
            replace(p, origin=p.origin or faults.nearest(p.path)) for p in faults.problems[before:]
        ]
        found.append((point, replace(loaded, job=job, container=container)))
    faults.stop_if(lambda _: True)
    return found
