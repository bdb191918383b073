"""Find a sweep's points, and the runs that a RUN argument names."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.errors import StateError
from launcher.run import index
from launcher.run.files import read_object
from launcher.run.index import SWEEP_FILE
from launcher.run.paths import RunPaths


def points_of(sweep: Path) -> list[RunPaths]:
    """Return the points of the sweep in ``sweep``, in their order, without those whose folder is missing."""
    points = (read_object(sweep / SWEEP_FILE) or {}).get("points", [])
    named = [sweep / str(p["run"]) for p in points if isinstance(p, dict) and "run" in p]
    return [RunPaths(path) for path in named if os.path.isdir(path)]


def runs_of(wanted: str) -> list[RunPaths]:
    """Return the run, or the points of the sweep, that ``wanted`` names. Raises RunNotFoundError."""
    return runs_at(index.resolve(wanted))


def runs_at(path: Path) -> list[RunPaths]:
    """Return the run, or the points of the sweep, in a folder."""
    return points_of(path) if index.is_sweep(path) else [RunPaths(path)]


def single(wanted: str) -> RunPaths:
    """Return the one run that ``wanted`` names. Raises RunNotFoundError, or StateError for a sweep."""
    path = index.resolve(wanted)
    if index.is_sweep(path):
        raise StateError(f"{path.name} is a sweep: name one of its points (launcher ls --sweep {path.name})")
    return RunPaths(path)
