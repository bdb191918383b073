"""Whose a file is, and who else can write it: what somebody else could have written is not executed."""

from __future__ import annotations

import os
import stat

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def is_own(found: os.stat_result) -> bool:
    """Return whether that belongs to this user, or to root, who can do everything anyway."""
    return found.st_uid in (os.geteuid(), 0)


def other_writer(found: os.stat_result) -> str:
    """Return who else could have written that: "belongs to mallory", "can be written by everybody"; "" for nobody."""
    if not is_own(found):
        return f"belongs to {user_name(found.st_uid)}"
    if found.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    if found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid):
        return f"can be written by {_group_name(found.st_gid)}"
    return ""


def user_name(uid: int) -> str:
    """Return a user's name, or "user 4321" where no account is known (in a container, say)."""
    import pwd  # where it is needed alone: nodes seldom ask

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _is_private(gid: int) -> bool:
    """Tell whether a group is root's, or has the user as its one member: many systems make such a group for every user."""
    import grp

    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return gid == 0
    name = user_name(os.geteuid())
    return gid == 0 or (group.gr_name == name and set(group.gr_mem) <= {name})


def _group_name(gid: int) -> str:
    import grp

    try:
        return f"group {grp.getgrgid(gid).gr_name}"
    except KeyError:
        return f"group {gid}"
