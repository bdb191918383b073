"""Each attempt is claimed, and only the newest claim may commit or delete.

A claim is ``attempts/N``, made by exclusive ``mkdir``: two leaders can never hold the same number, also when SLURM's own
requeue and a continuation job both happen. A leader that finds a higher number is stale. The check alone could race
with a newer claim. Therefore a new leader also removes every ``tmp.<older attempt>.*`` folder. The rename that commits a
checkpoint has such a folder as its source: a stale leader's commit finds nothing to rename. To delete a committed
checkpoint, it is renamed *before* the check, and put back when the check fails: a later claimant finds it in place or
gone, and never loses one of its own.

An agent that hands the job back for a leader that stands still marks the leader's attempt first: if that leader goes on,
its attempt is over before a newer one begins.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from launcher.errors import RunDirError
from launcher.run import clock
from launcher.run.asking import OwnError, exists, may_pass, names
from launcher.run.files import fsync_dir, read_object, write_atomic
from launcher.run.paths import RunPaths
from launcher.run.units import whole_number

TRASH = "trash."
"""Folders that are being deleted begin with this; nobody reads them."""
_DEPOSED = "deposed"
_LEAVING = "leaving."
"""Begins the names of checkpoints whose deletion is not yet allowed; the attempt and the name follow."""


class StaleError(OwnError):
    """A newer attempt has begun. (ESTALE alone is no proof: NFS gives it, too, after its server has failed over.)"""


def attempts(paths: RunPaths) -> list[int]:
    """Return every attempt number that was ever claimed, ascending. Raises OSError when that is not known."""
    numbers = map(whole_number, names(paths.attempts, paths.root))
    return sorted(number for number in numbers if number is not None)


def claim_attempt(paths: RunPaths, **who: Any) -> int:
    """Take the next attempt number; ``who`` (job id, host, pid) is noted inside.

    Raises RunDirError, and OSError for errors that may pass: a number that was taken then is used by nobody.
    """
    try:
        paths.attempts.mkdir(mode=0o750, exist_ok=True)
        number = max(attempts(paths), default=-1) + 1
        while True:
            try:
                (paths.attempts / str(number)).mkdir(mode=0o750)
                break
            except FileExistsError:
                number += 1
        write_atomic(paths.attempts / str(number) / "claim.json", json.dumps({"t": clock.now(), **who}))
        fsync_dir(paths.attempts)
    except OSError as error:
        if may_pass(error, paths.root):
            raise
        raise RunDirError(f"The run directory {paths.root} cannot be written: {error}.") from error
    return number


def claimant(paths: RunPaths, attempt: int) -> dict[str, Any]:
    """Return who claimed ``attempt``; empty when unknown."""
    return read_object(paths.attempts / str(attempt) / "claim.json") or {}


def depose(paths: RunPaths, attempt: int) -> None:
    """Mark ``attempt`` as over, since another process decides on the run: its leader, if alive, writes nothing more."""
    with contextlib.suppress(OSError):  # the folder cannot be written: the leader cannot write there either
        (paths.attempts / str(attempt) / _DEPOSED).touch()


def is_over(paths: RunPaths, attempt: int) -> bool:
    """Whether a newer attempt has been claimed, or this one was deposed. False when the folder cannot be read."""
    try:
        return not is_current(paths, attempt)
    except OSError:
        return False


def is_current(paths: RunPaths, attempt: int) -> bool:
    """Whether this is the newest attempt and not deposed. Raises OSError when that is not known, or its own claim is gone."""
    newest = max(attempts(paths), default=-1)
    if newest < attempt:  # somebody is deleting the run's folder, or it is another folder of that name
        raise FileNotFoundError(errno.ENOENT, f"attempts/{attempt} is gone")
    return newest == attempt and not exists(paths.attempts / str(attempt) / _DEPOSED, paths.root)


def drop_stale(paths: RunPaths, attempt: int) -> None:
    """Take away what older attempts were still writing, put back what they were about to delete.

    What is taken away is renamed alone, for `empty_trash`. Raises OSError when the folder cannot be listed, or one of them stays.
    """
    for folder in _folders(paths):
        if folder.name.startswith(_LEAVING):
            _put_back(folder)
        elif (older := _attempt_of(folder.name)) is not None and older < attempt:
            _renamed(folder, _trash_of(folder))


def empty_trash(paths: RunPaths) -> None:
    """Delete what has been taken away. Terabytes on a slow file system take minutes; what stays now the next attempt deletes."""
    with contextlib.suppress(OSError):
        for folder in _folders(paths):
            if folder.name.startswith(TRASH):
                shutil.rmtree(folder, ignore_errors=True)


def discard_unfinished(paths: RunPaths, attempt: int) -> None:
    """Delete what earlier rounds of this attempt were still writing. What is missed now the next call finds."""
    with contextlib.suppress(OSError):
        for folder in _folders(paths):
            if _attempt_of(folder.name) == attempt:
                discard(folder)


def take_away(paths: RunPaths, checkpoint: Path, attempt: int) -> None:
    """Delete a committed checkpoint, unless a newer attempt has begun. A missing one is no error.

    Raises OSError when that is not known: the checkpoint is put back, here or by the next attempt.
    """
    leaving = checkpoint.parent / f"{_LEAVING}{attempt}.{checkpoint.name}"
    if not _renamed(checkpoint, leaving):
        return
    current = False
    try:
        current = is_current(paths, attempt)
    finally:
        (discard if current else _put_back)(leaving)


def _put_back(leaving: Path) -> None:
    try:
        _renamed(leaving, leaving.parent / leaving.name.split(".", 2)[2])  # missing: its deletion went on
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        discard(leaving)  # its step has been saved anew meanwhile


def discard(folder: Path) -> None:
    """Delete a folder: renamed first, so that nobody ever sees half of it. One that is missing, or stays, is no error."""
    trash = _trash_of(folder)
    with contextlib.suppress(OSError):
        if _renamed(folder, trash):
            shutil.rmtree(trash, ignore_errors=True)


def _trash_of(folder: Path) -> Path:
    return folder.parent / f"{TRASH}{os.getpid()}.{time.monotonic_ns()}.{folder.name}"


def _renamed(folder: Path, target: Path) -> bool:
    """Rename a folder in ``checkpoints``; False when it is certainly missing. Raises OSError."""
    try:
        os.rename(folder, target)
    except FileNotFoundError:
        if exists(folder, folder.parent.parent):
            raise
        return False
    return True


def _attempt_of(name: str) -> int | None:
    parts = name.split(".")
    return whole_number(parts[1]) if len(parts) == 4 and parts[0] == "tmp" else None


def _folders(paths: RunPaths) -> list[Path]:
    """List ``checkpoints``. Raises OSError when that is not possible."""
    return [paths.checkpoints / name for name in names(paths.checkpoints, paths.root)]
