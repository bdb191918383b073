"""Make points of a sweep: lists of values by key path become jobs, all of them one array submission."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from launcher.config.document.source import COMMAND_LINE, Origin, Problem, read_value, value_text
from launcher.config.document.validation import keys_at, suggestion
from launcher.frozen import frozen
from launcher.redact import redact_values, secret_name

MOST_POINTS = 10_000
_MOST_AXES = 100
PARALLELISM = "array_parallelism"
SWEPT = (
    "params", "args", "seed", "deterministic", "task", "function", "script", "distributed", "checkpoint", "trackers",
)  # fmt: skip
"""Sections that a point may change: none of them is part of the sbatch script, which all points share."""
_RANGE = re.compile(r"range\(\s*(-?\d{1,12})\s*(?:,\s*(-?\d{1,12})\s*)?(?:,\s*(-?\d{1,12})\s*)?\)")
_LABEL = 40


@frozen
class Point:
    """One combination of values."""

    index: int
    """Its index in the array, from 0."""
    label: str
    """The values in short, for its name: ``lr0.1-seed3``."""
    overrides: dict[str, Any]
    """Values by key path."""


@frozen
class Sweep:
    """Every point, the last key varying fastest."""

    points: tuple[Point, ...]
    array_parallelism: int | None = None
    """Points that run at the same time, at most; None: as many as SLURM allows."""


# --- reading ------------------------------------------------------------------------------------------------------------


def read_flags(flags: Sequence[str]) -> tuple[dict[str, Any], list[Problem]]:
    """Read ``key=a,b`` and ``key=range(5)``, the values of ``--sweep``."""
    found: dict[str, Any] = {}
    problems = []
    for text in flags:
        key, equals, spec = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][\w-]*(?:\.[\w-]+)*", key):
            said = f'"{text}" is not a sweep; write --sweep key=a,b or --sweep key=range(5)'
            problems.append(Problem("", said, origin=Origin(COMMAND_LINE)))
        elif key in found:  # the first one's values would be lost
            said = f"{key} is given twice; write all its values in one --sweep"
            problems.append(Problem(f"sweep.{key}", said, origin=Origin(COMMAND_LINE)))
        elif _RANGE.fullmatch(spec.strip()):
            found[key] = spec.strip()
        else:
            value, wrong = read_value(f"[{spec}]")
            if wrong:
                unread = f'"{spec}" is not a list of values; check brackets and quotes'
                said = unread if value is None else wrong
                problems.append(Problem(f"sweep.{key}", said, origin=Origin(COMMAND_LINE)))
            else:
                found[key] = value[0] if len(value) == 1 and isinstance(value[0], list) else value
    return found, problems


def flatten(sweep: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield values by key path: ``{params: {lr: [1]}}`` is ``params.lr``, ``[1]``."""
    for key, value in sweep.items():
        path = f"{above}.{key}" if above else key
        if isinstance(value, dict):
            yield from flatten(value, path)
        else:
            yield path, value


def axes(sweep: dict[str, Any]) -> tuple[dict[str, list[Any]], list[Problem]]:
    """Return the values of each key path, and what is wrong with them."""
    found: dict[str, list[Any]] = {}
    problems = []
    for key, value in sweep.items():
        if key == PARALLELISM:
            if type(value) is not int or value < 1:
                said = f"must be a whole number of at least 1, not {value_text(value)}"
                problems.append(Problem(f"sweep.{key}", said, "value"))
            continue
        if refused := _may_be_swept(key):
            problems.append(Problem(f"sweep.{key}", refused))
            continue
        try:
            found[key] = _values(value)
        except ValueError as error:
            problems.append(Problem(f"sweep.{key}", str(error), "value"))
    if len(found) > _MOST_AXES:
        problems.append(Problem("sweep", f"varies {len(found):,} keys; at most {_MOST_AXES} are allowed"))
        return found, problems
    for key in found:
        above = next((other for other in found if key.startswith(f"{other}.")), None)
        if above is not None:
            problems.append(Problem(f"sweep.{key}", f"lies below {above}, which is varied, too: vary one of them"))
    count = math.prod(len(v) for v in found.values())
    if count > MOST_POINTS:
        problems.append(Problem("sweep", f"has {count:,} points; at most {MOST_POINTS:,} are allowed"))
    if PARALLELISM in sweep and len(sweep) == 1:
        problems.append(Problem("sweep", "varies no key; add lists of values, such as params.lr: [0.1, 0.01]"))
    return found, problems


def _may_be_swept(key: str) -> str | None:
    top = key.split(".")[0]
    if top in SWEPT:
        return "name the keys below params, such as params.lr" if key == "params" else None
    if top not in keys_at(""):
        return f'unknown key "{key}"{suggestion(top, SWEPT)}'
    in_script = top not in ("name", "sweep", "code", "runs_dir", "share", "after", "notify", "preflight")
    return f"{top} cannot be swept{': all points share one sbatch script' if in_script else ''}"


def _values(value: Any) -> list[Any]:
    """Return the values of one axis. Raises ValueError with a sentence."""
    if isinstance(value, str):
        found = _RANGE.fullmatch(value.strip())
        if not found:
            raise ValueError(f'must be a list of values or range(n), not "{value}"')
        numbers = [int(n) for n in found.groups() if n is not None]
        if numbers[2:] == [0]:
            raise ValueError(f"{value} has a step of 0")
        steps = range(*numbers)
        if len(steps) > MOST_POINTS:
            raise ValueError(f"{value} has {len(steps):,} values; at most {MOST_POINTS:,} points are allowed")
        value = list(steps)
    if not isinstance(value, list):
        raise ValueError(f"must be a list of values or range(n), not {value_text(value)}")
    if not value:
        raise ValueError("has no values")
    seen: set[str] = set()
    for item in value:
        text = json.dumps(item, sort_keys=True)
        if text in seen:
            raise ValueError(f"has {value_text(item)} twice")
        seen.add(text)
    return value


# --- points -------------------------------------------------------------------------------------------------------------


def expand(sweep: dict[str, Any]) -> Sweep:
    """Return every combination of a sweep whose `axes` are right."""
    found, _ = axes(sweep)
    words = _words(list(found))
    points: list[Point] = []
    seen: set[str] = set()
    labelled = [
        [(value, f"{word}{text}") for value, text in zip(values, _shown(key, values), strict=True)]
        for word, (key, values) in zip(words, found.items(), strict=True)
    ]
    for index, pairs in enumerate(itertools.product(*labelled)):
        values, parts = zip(*pairs, strict=True) if pairs else ((), ())
        label = "-".join(parts)
        if len(label) > _LABEL or label in seen:
            label = f"{label[: _LABEL - 6].rstrip('-._')}-p{index}"
        seen.add(label)
        points.append(Point(index, label, dict(zip(found, values, strict=True))))
    return Sweep(tuple(points), sweep.get(PARALLELISM))


def _words(keys: list[str]) -> list[str]:
    """Return the last word of each key path, more of them where two keys end alike."""
    words = []
    for key in keys:
        parts = key.split(".")
        for count in range(1, len(parts) + 1):
            word = ".".join(parts[-count:])
            if sum(f".{other}".endswith(f".{word}") for other in keys) == 1:
                break
        words.append(re.sub(r"[^A-Za-z0-9._]+", "_", word))
    return words


def _shown(key: str, values: list[Any]) -> list[str]:
    """Return the values in short; their indices where the key or a value tells of a secret, as labels name folders and jobs."""
    secret = any(map(secret_name, key.split("."))) or redact_values(values) != values
    return [f".p{index}" if secret else _short(value) for index, value in enumerate(values)]


def _short(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        text = json.dumps(value)
    elif isinstance(value, float):
        text = f"{value:.6g}"
    else:
        text = str(value)
    text = text if isinstance(value, str) else text.replace("-", "m")
    return re.sub(r"[^A-Za-z0-9.]+", "_", text).strip("_")[:16]


def set_values(container: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of ``container`` with values set by key path; only the mappings on the way are copied."""
    result = dict(container)
    for path, value in overrides.items():
        node = result
        *above, last = path.split(".")
        for part in above:
            below = node.get(part)
            node[part] = dict(below) if isinstance(below, dict) else {}
            node = node[part]
        node[last] = value
    return result
