"""Whose a run's folder is. Nothing is executed from a folder that somebody else can write in, and nothing is signalled because of it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from launcher.errors import StateError
from launcher.run.paths import SWEEP_FILE

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NOBODY = 65534
"""The owner that NFS with root_squash, or a container, shows in place of one that it does not know."""


def is_own(found: os.stat_result) -> bool:
    """Return whether that belongs to this user, or to root, who can do everything anyway."""
    return found.st_uid in (os.geteuid(), 0)


def mark_of_owner(folder: str | Path) -> str:
    """Return who else can write in ``folder``, in two or three words; "" where nobody can, or it is not there."""
    try:
        found = os.stat(folder)
    except OSError:
        return ""
    if not is_own(found):
        return f"of {_user(found.st_uid)}"
    return "others can write" if found.st_mode & _OTHERS_WRITE else ""


def require_own(folder: Path) -> None:
    """Refuse a run's folder that somebody else can write in; of a sweep's point, the sweep's, too. Raises StateError."""
    around = folder.parent
    for place in (around, folder) if os.path.lexists(around / SWEEP_FILE) else (folder,):
        try:
            found = os.stat(place)
        except OSError as error:
            raise StateError(f"{place} cannot be looked at: {error.strerror}") from None
        mode = f"mode {stat.S_IMODE(found.st_mode):04o}"
        if not is_own(found):
            hint = ", which a network file system or a container shows in place of an unknown owner" * (
                found.st_uid == _NOBODY
            )
            raise StateError(
                f"{place} is owned by {_user(found.st_uid)}{hint} ({mode}), and you are {_user(os.geteuid())}: "
                "a run that is not yours can be read, but not run, resubmitted, forked or cancelled"
            )
        if found.st_mode & _OTHERS_WRITE:
            raise StateError(
                f"others can write in {place} (owner {_user(found.st_uid)}, {mode}), so nothing of it is run or signalled: "
                f"look at what it holds, then chmod go-w {place}"
            )


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a container without a passwd entry
        return f"user {uid}"
