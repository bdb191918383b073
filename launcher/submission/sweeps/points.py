"""Find a sweep's points, and the runs that a RUN argument names."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.errors import StateError
from launcher.run import index
from launcher.run.own_folder import require_own
from launcher.run.paths import RunPaths


def points_of(sweep: Path) -> list[RunPaths]:
    """Return the points of the sweep in ``sweep``, in their order, without those whose folder is missing."""
    return [RunPaths(sweep / name) for name in index.points_in(sweep) if os.path.isdir(sweep / name)]


def own_points_of(sweep: Path) -> list[RunPaths]:
    """Return the points of a sweep of one's own. Raises StateError, also where none is found."""
    require_own(sweep)
    points = points_of(sweep)
    if not points:
        raise StateError(f"{sweep.name} is a sweep, and no point of it is found in {sweep}")
    return points


def own_runs_of(wanted: str) -> list[RunPaths]:
    """Return the run of one's own, or the points of the sweep, that ``wanted`` names. Raises RunNotFoundError or StateError."""
    path = index.resolve(wanted)
    if index.is_sweep(path):
        return own_points_of(path)
    require_own(path)
    return [RunPaths(path)]


def runs_at(path: Path) -> list[RunPaths]:
    """Return the run, or the points of the sweep, in a folder."""
    return points_of(path) if index.is_sweep(path) else [RunPaths(path)]


def single(wanted: str) -> RunPaths:
    """Return the one run that ``wanted`` names. Raises RunNotFoundError, or StateError for a sweep."""
    path = index.resolve(wanted)
    if index.is_sweep(path):
        raise StateError(f"{path.name} is a sweep: name one of its points (launcher ls --sweep {path.name})")
    return RunPaths(path)
