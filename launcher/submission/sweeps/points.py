"""Find a sweep's points, and the runs that a RUN argument names."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.errors import StateError
from launcher.run import index
from launcher.run.files import read_object
from launcher.run.own_folder import require_own
from launcher.run.paths import SWEEP_FILE, RunPaths


def points_of(sweep: Path) -> list[RunPaths]:
    """Return the points of the sweep in ``sweep``, in their order, without those whose folder is missing."""
    points = (read_object(sweep / SWEEP_FILE) or {}).get("points", [])
    named = [str(p.get("run")) for p in (points if isinstance(points, list) else []) if isinstance(p, dict)]
    inside = (sweep / name for name in named if name not in ("", ".", "..") and "/" not in name and "\0" not in name)
    return [RunPaths(path) for path in inside if os.path.isdir(path)]


def own_runs_of(wanted: str) -> list[RunPaths]:
    """Return the run of one's own, or the points of the sweep, that ``wanted`` names. Raises RunNotFoundError or StateError."""
    path = index.resolve(wanted)
    require_own(path)
    return runs_at(path)


def runs_at(path: Path) -> list[RunPaths]:
    """Return the run, or the points of the sweep, in a folder."""
    return points_of(path) if index.is_sweep(path) else [RunPaths(path)]


def single(wanted: str) -> RunPaths:
    """Return the one run that ``wanted`` names. Raises RunNotFoundError, or StateError for a sweep."""
    path = index.resolve(wanted)
    if index.is_sweep(path):
        raise StateError(f"{path.name} is a sweep: name one of its points (launcher ls --sweep {path.name})")
    return RunPaths(path)
