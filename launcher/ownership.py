"""Whose a file is, and who else can write it: what somebody else could have written is not executed."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from collections.abc import Container
from pathlib import Path

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS = 40  # Linux's own bound


def is_own(found: os.stat_result) -> bool:
    """Return whether that belongs to this user, or to root, who can do everything anyway."""
    return found.st_uid in (os.geteuid(), 0)


def other_writer(path: str | Path | int, found: os.stat_result) -> str:
    """Return who else could have written ``path``, a descriptor's file as well: "belongs to mallory"; "" for nobody."""
    if not is_own(found):
        return f"belongs to {user_name(found.st_uid)}"
    if found.st_mode & stat.S_IWOTH:
        return "can be written by everybody"
    if found.st_mode & stat.S_IWGRP:
        if not _is_private(found.st_gid, os.geteuid()):
            return f"can be written by {_group_name(found.st_gid)}"
        with contextlib.suppress(OSError):  # with one, the group's bits are the most that anybody in it may do
            os.getxattr(path, "system.posix_acl_access")
            return "can be written by those in its access control list"
    return ""


def is_closed(found: os.stat_result) -> bool:
    """Tell whether the owner has closed that to all others. With a umask of 077 all that they make is so: then nothing tells."""
    return not found.st_mode & 0o077 and _umask() & 0o077 != 0o077


def _umask() -> int:
    """Return the umask without setting it: other threads start programs meanwhile. Linux before 4.7 does not tell: 0."""
    with open("/proc/self/status") as f:
        return next((int(line.split()[1], 8) for line in f if line.startswith("Umask:")), 0)


def replacer(path: Path) -> str:
    """Return who else could put another file in ``path``'s place: "/tmp/x can be written by everybody"; "" for nobody.

    Of the folders above, the nearest alone is looked at: of a team's or a laboratory's, the farther ones are often open.
    Raises OSError.
    """
    if path.is_symlink() and not is_own(found := os.lstat(path)):
        return f"{path} belongs to {user_name(found.st_uid)}"
    folder = path.absolute().parent
    return _open_to_all(folder, os.stat(folder))


def steerer(path: Path, trusted: Container[Path]) -> str:
    """Return who else could lead ``path`` elsewhere: whose a link or a folder on the way is, those that links lead to, too.

    The folders in ``trusted`` are not looked at. A missing file is nobody's where not everybody can make it. A group that may write is that
    of the repository's own users. Raises OSError.
    """
    rest, at, links = list(reversed(path.absolute().parts[1:])), Path("/"), 0
    while rest:
        part = rest.pop()
        if part == "..":
            at = at.parent
            continue
        at /= part
        try:
            found = os.lstat(at)
        except FileNotFoundError:  # whoever can write in the folder can make it
            return _written_by_all(at.parent, os.stat(at.parent))
        if at not in trusted:
            if not is_own(found):
                return f"{at} belongs to {user_name(found.st_uid)}"
            if rest and (why := _open_to_all(at, found)):
                return why
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            target = Path(os.readlink(at))
            rest += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            at = Path("/") if target.is_absolute() else at.parent
    return _written_by_all(at, os.stat(at)) if path.is_file() else ""


def _written_by_all(path: Path, found: os.stat_result) -> str:
    return f"{path} can be written by everybody" if found.st_mode & stat.S_IWOTH else ""


def _open_to_all(folder: Path, found: os.stat_result) -> str:
    """Return that everybody can replace what is in a folder; with the sticky bit, only owners can."""
    open_to_all = stat.S_ISDIR(found.st_mode) and found.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH
    return f"{folder} can be written by everybody" if open_to_all else ""


def home() -> Path:
    """Return this user's home folder; / where none is known: without HOME, a user without an account (in a container, say) has none."""
    found = os.path.expanduser("~")
    return Path("/" if found.startswith("~") else found)


def user_name(uid: int) -> str:
    """Return a user's name, or "user 4321" where no account is known (in a container, say)."""
    import pwd  # where it is needed alone: nodes seldom ask

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


@functools.cache
def _is_private(gid: int, uid: int) -> bool:
    """Tell whether a group is root's, or has the user as its one member: many systems make such a group for every user."""
    import grp

    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return gid == 0
    name = user_name(uid)
    return gid == 0 or (group.gr_name == name and set(group.gr_mem) <= {name})


def _group_name(gid: int) -> str:
    import grp

    try:
        return f"group {grp.getgrgid(gid).gr_name}"
    except KeyError:
        return f"group {gid}"
