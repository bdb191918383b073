"""Whether a job is the user's own: what others own or can write is not run before the user has vouched for it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from launcher.errors import TrustError
from launcher.ownership import other_writer, replacer


def doubt(paths: Iterable[Path]) -> str:
    """Return whose else one of ``paths`` may be: "job.yaml belongs to mallory"; empty when all are the user's or root's.

    What is not there is nobody's.
    """
    for path in paths:
        with contextlib.suppress(OSError):
            if why := replacer(path):
                return why
            if why := other_writer(path, os.stat(path)):
                return f"{path} {why}"
    return ""


def refuse(why: str) -> None:
    """Raise TrustError for a doubt; do nothing for an empty one."""
    if why:
        raise TrustError(f"{why}, and what it names would run as you; read it, then add --trust")
