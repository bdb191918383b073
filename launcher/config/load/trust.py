"""Whether a job is the user's own: what others own or can write is not run before the user has vouched for it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from launcher.config.document.source import Document
from launcher.errors import TrustError
from launcher.ownership import is_own, other_writer, replacer, user_name


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


def doubt_of_job(path: Path, read: Document) -> str:
    """Return whose else the job file may be that was ``read``: who owns it by now does not count, but who owned what was read.

    One that has gone since is in doubt: a link of somebody else's may have led to it.
    """
    try:
        found = os.lstat(path)
        why = replacer(path)
    except OSError as error:
        return f"{path} cannot be looked at any more ({(error.strerror or str(error)).lower()})"
    if not is_own(found):
        return f"{path} belongs to {user_name(found.st_uid)}"
    return why or (read.writer and f"{path} {read.writer}")


def refuse(why: str) -> None:
    """Raise TrustError for a doubt; do nothing for an empty one."""
    if why:
        raise TrustError(f"{why}, and what it names would run as you; read it, then add --trust")
