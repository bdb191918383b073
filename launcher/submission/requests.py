"""Requests to a leader: the one file in a run's folder that somebody else writes."""

from __future__ import annotations

import json
import time

from launcher.run.files import write_atomic
from launcher.run.paths import RunPaths
from launcher.submission import rundir

__all__ = ["request_stop"]


def request_stop(paths: RunPaths, *, save: bool) -> None:
    """Write down that the user wants the run stopped; a signal then announces it. Raises RunDirError."""
    try:
        write_atomic(paths.request, json.dumps({"action": "stop", "save": save, "t": time.time()}) + "\n", mode=0o600)
    except OSError as error:
        raise rundir.refuse(paths.root, error) from None
