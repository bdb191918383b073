"""Delete checkpoints and unfinished saves: each is moved to the trash first, by a rename, so that nobody ever sees half of one.

A leader may be stale without knowing it (`launcher.node.checkpoints.claims`). Therefore a new leader moves every ``tmp.*`` folder of
older claims. The rename that commits a checkpoint has such a folder as its source: a stale leader's commit finds nothing to
rename. A committed checkpoint is renamed *before* the claim is checked, and put back when the check fails: a later claimant finds
it in place or gone, and never loses one of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import time
from pathlib import Path

from launcher.node.checkpoints import claims
from launcher.node.checkpoints.claims import Claim
from launcher.run.asking import exists, names
from launcher.run.paths import RunPaths
from launcher.run.units import whole_number

TRASH = "trash."
"""Folders that are being deleted begin with this; nobody reads them."""
_LEAVING = "leaving."
"""Begins the names of checkpoints whose deletion is not yet allowed; the attempt and the name follow."""


def move_stale(paths: RunPaths, claim: Claim) -> None:
    """Move to the trash what the leaders of older claims were still writing, and put back what they were about to delete.

    Nothing is written for this claim yet: all that is there was begun for older ones. Raises OSError when the folder cannot be
    listed, or one of them stays.
    """
    for folder in _folders(paths):
        if folder.name.startswith(_LEAVING):
            _put_back(folder)
        elif (older := _attempt_of(folder.name)) is not None and older <= claim.attempt:
            _renamed(folder, _trash_of(folder))


def empty(paths: RunPaths) -> None:
    """Delete what is in the trash. Terabytes on a slow file system take minutes; what stays now the next attempt deletes."""
    with contextlib.suppress(OSError):
        for folder in _folders(paths):
            if folder.name.startswith(TRASH):
                shutil.rmtree(folder, ignore_errors=True)


def empty_in_thread(paths: RunPaths) -> None:
    """Do `empty` in a thread that neither the leader's loop nor the process's end waits for."""
    threading.Thread(target=empty, args=(paths,), name="trash", daemon=True).start()


def move_unfinished(paths: RunPaths, claim: Claim) -> None:
    """Move to the trash what earlier rounds of this leader were still writing. What is missed now the next call finds."""
    with contextlib.suppress(OSError):
        if not claims.is_current(paths, claim):
            return  # a newer leader's rounds are of the same attempt
        for folder in _folders(paths):
            if _attempt_of(folder.name) == claim.attempt:
                move(folder)


def move_checkpoint(paths: RunPaths, checkpoint: Path, claim: Claim) -> None:
    """Move a committed checkpoint to the trash, unless there is a newer claim. A missing one is no error.

    Raises OSError when that is not known: the checkpoint is put back, here or by the next leader.
    """
    leaving = checkpoint.parent / f"{_LEAVING}{claim.attempt}.{checkpoint.name}"
    if not _renamed(checkpoint, leaving):
        return
    current = False
    try:
        current = claims.is_current(paths, claim)
    finally:
        (move if current else _put_back)(leaving)


def _put_back(leaving: Path) -> None:
    try:
        _renamed(leaving, leaving.parent / leaving.name.split(".", 2)[2])  # missing: its deletion went on
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        delete(leaving)  # its step has been saved anew meanwhile


def delete(folder: Path) -> None:
    """Delete a folder at once. One that is missing, or stays, is no error."""
    trash = _trash_of(folder)
    with contextlib.suppress(OSError):
        if _renamed(folder, trash):
            shutil.rmtree(trash, ignore_errors=True)


def move(folder: Path) -> None:
    """Move a folder to the trash. One that is missing, or stays, is no error."""
    with contextlib.suppress(OSError):
        _renamed(folder, _trash_of(folder))


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
