"""Whether a job is the user's own: what others own or can write is not run before the user has vouched for it."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from collections.abc import Iterable
from pathlib import Path

from launcher.errors import TrustError


def doubt(paths: Iterable[Path]) -> str:
    """Return whose else one of ``paths`` may be: "job.yaml belongs to mallory"; empty when all are the user's or root's.

    What is not there is nobody's.
    """
    for path in paths:
        with contextlib.suppress(OSError):
            if why := _of_others(os.stat(path)):
                return f"{path} {why}"
    return ""


def refuse(why: str) -> None:
    """Raise TrustError for a doubt; do nothing for an empty one."""
    if why:
        raise TrustError(f"{why}, and what it names would run as you; read it, then add --trust")


def _of_others(found: os.stat_result) -> str:
    if found.st_uid not in (os.geteuid(), 0):
        return f"belongs to {_user(found.st_uid)}"
    if found.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    if found.st_mode & stat.S_IWGRP and not _private(found.st_gid):
        return f"can be written by {_group(found.st_gid)}"
    return ""


def _private(gid: int) -> bool:
    """Tell whether a group is root's, or has the user as its one member: many systems make such a group for every user."""
    try:
        name, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
    except KeyError:
        return gid == 0
    return gid == 0 or (group.gr_name == name and set(group.gr_mem) <= {name})


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _group(gid: int) -> str:
    try:
        return f"group {grp.getgrgid(gid).gr_name}"
    except KeyError:
        return f"group {gid}"
