"""Whether a run's folder is one's own. Nothing is executed from one that somebody else can write in, and nothing is signalled for it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from launcher.errors import RunDirError, StateError
from launcher.ownership import is_own, other_writer, replacer, user_name
from launcher.run.paths import SWEEP_FILE, RunPaths

_NOBODY = 65534
"""The owner that NFS with root_squash, or a container, shows in place of one that it does not know."""
_MOST_CHECKED = 20_000


def mark_of_owner(folder: str | Path) -> str:
    """Return who else can write in ``folder``, in two or three words; "" where nobody can, or it is not there."""
    try:
        found = os.stat(folder)
    except OSError:
        return ""
    if not is_own(found):
        return f"of {user_name(found.st_uid)}"
    return "others can write" if other_writer(folder, found) else ""


def require_own(folder: Path, *, executes: bool = True) -> None:
    """Refuse a run's folder that somebody else can write in or, where something of it ``executes``, can replace.

    Of a sweep's point, the sweep's folder, too. Raises StateError.
    """
    if executes and (why := _replaced_by(folder)):
        raise StateError(
            f"{why}, so {folder} may be another run than yours: look at what it holds, then name it by its own path, or chmod +t {folder.parent}"
        )
    around = folder.parent
    for place in (around, folder) if os.path.lexists(around / SWEEP_FILE) else (folder,):
        try:
            found = os.stat(place)
        except OSError as error:
            raise StateError(f"{place} cannot be looked at: {error.strerror}") from None
        mode = f"mode {stat.S_IMODE(found.st_mode):04o}"
        if not is_own(found):
            unknown = "nobody, which a network file system or a container shows for an owner that it does not know"
            owner = unknown if found.st_uid == _NOBODY else user_name(found.st_uid)
            raise StateError(
                f"{place} is owned by {owner} ({mode}), and you are {user_name(os.geteuid())}: "
                "a run that is not yours can be read, but not run, resubmitted, forked or cancelled"
            )
        if other_writer(place, found):
            raise StateError(
                f"others can write in {place} (owner {user_name(found.st_uid)}, {mode}), so nothing of it is run or "
                f"signalled: look at what it holds, then chmod go-w {place}"
            )


def require_safe_place(folder: Path) -> None:
    """Refuse to make a run's folder where everybody could put another in its place. Raises RunDirError."""
    if why := _replaced_by(folder):
        raise RunDirError(
            f"{why}, who could put another run in the place of yours: chmod +t it, or set runs_dir to a folder of your own"
        )


def _replaced_by(folder: Path) -> str:
    try:
        return replacer(folder)
    except OSError:
        return ""


def require_only_own_writers(paths: RunPaths) -> None:
    """Refuse to start a run of which somebody else could have written what it executes. Raises RunDirError.

    That is its spec, its job, its code and the launcher in it, submitit's pickles. What its code links to outside is not
    looked at, nor is a run that nobody else may enter (0700). Folders that cannot be looked at are left to what needs them.
    """
    try:
        if not os.stat(paths.root).st_mode & 0o077:
            return
    except OSError:
        return
    executed = [paths.root, paths.spec, paths.job, paths.sbatch, paths.secret, paths.passed]
    for path in [*executed, *_below(paths.code), *_below(paths.lib), *_below(paths.submitit)]:
        try:
            why = other_writer(path, os.lstat(path))
        except OSError:
            continue
        if why and not path.is_symlink():
            raise RunDirError(
                f"{path} {why}, and this run would execute it: look at what it holds, then chmod -R go-w {paths.root} "
                "and resubmit the run"
            )


def _below(folder: Path) -> list[Path]:
    """Return the folder and what is in it, at most some more than `_MOST_CHECKED` files; nothing of a link to elsewhere.

    The code of a sweep's point is a link to that of the sweep, which is beside it.
    """
    if folder.is_symlink() and not folder.resolve().is_relative_to(folder.parent.parent):
        return []
    found = [folder]
    for top, folders, files in os.walk(folder):
        found += [Path(top, name) for name in (*folders, *files)]
        if len(found) > _MOST_CHECKED:
            break
    return found
