"""Attempts are claimed, and only the newest claim may commit or delete.

A claim is ``attempts/N``, made by exclusive ``mkdir``: two leaders can never hold the same number, also when SLURM's own
requeue and a continuation job both happen. A leader that finds a higher number is stale. The check alone could race
with a newer claim; therefore a new leader also takes away every ``tmp.<older attempt>.*`` folder, and the rename that
commits a checkpoint has such a folder as its source: a stale leader's commit finds nothing to rename. A committed
checkpoint is deleted by moving it out of sight *before* the check, and put back when the check fails: whoever claims
later finds it in place or gone, and none of its own can be hit.

An agent that hands the job back for a leader that stands still marks the leader's attempt first: should it go on, it is
over before a newer attempt begins.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from launcher.errors import RunDirError
from launcher.run.files import fsync_dir, read_object, write_atomic
from launcher.run.paths import RunPaths

__all__ = [
    "TRASH",
    "attempts",
    "claim",
    "claimant",
    "depose",
    "discard",
    "drop_stale",
    "is_current",
    "is_over",
    "take_away",
]

TRASH = "trash."
"""Folders on their way out begin with this; nobody reads them."""
_DEPOSED = "deposed"
_LEAVING = "leaving."
"""Checkpoints out of sight, their deletion not yet allowed; the attempt and the name follow."""


def attempts(paths: RunPaths) -> list[int]:
    """Every attempt number that was ever claimed, ascending."""
    try:
        names = os.listdir(paths.attempts)
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isdigit())


def claim(paths: RunPaths, **who: Any) -> int:
    """Take the next attempt number; ``who`` (job id, host, pid) is noted inside. Raises RunDirError."""
    try:
        paths.attempts.mkdir(mode=0o750, exist_ok=True)
        number = max(attempts(paths), default=-1) + 1
        while True:
            try:
                (paths.attempts / str(number)).mkdir(mode=0o750)
                break
            except FileExistsError:
                number += 1
        write_atomic(paths.attempts / str(number) / "claim.json", json.dumps({"t": time.time(), **who}))
        fsync_dir(paths.attempts)
    except OSError as error:
        raise RunDirError(f"The run directory {paths.root} cannot be written: {error}.") from error
    return number


def claimant(paths: RunPaths, attempt: int) -> dict[str, Any]:
    """Who claimed ``attempt``; empty when unknown."""
    return read_object(paths.attempts / str(attempt) / "claim.json") or {}


def depose(paths: RunPaths, attempt: int) -> None:
    """Others decide what becomes of the run: its leader, should it live, writes nothing more."""
    with contextlib.suppress(OSError):  # of a folder that cannot be written: the leader cannot write there either
        (paths.attempts / str(attempt) / _DEPOSED).touch()


def is_over(paths: RunPaths, attempt: int) -> bool:
    """A newer attempt has been claimed, or others act for this one's leader. A folder that cannot be read says neither."""
    return max(attempts(paths), default=attempt) > attempt or (paths.attempts / str(attempt) / _DEPOSED).exists()


def is_current(paths: RunPaths, attempt: int) -> bool:
    """This attempt is not over, and its claim is still there."""
    return attempt in attempts(paths) and not is_over(paths, attempt)


def drop_stale(paths: RunPaths, attempt: int) -> None:
    """Take away what older attempts were still writing, put back what they were about to delete, finish deletions."""
    for folder in _folders(paths.checkpoints):
        if folder.name.startswith(TRASH):
            shutil.rmtree(folder, ignore_errors=True)
        elif folder.name.startswith(_LEAVING):
            _put_back(folder)
        elif (older := _attempt_of(folder.name)) is not None and older < attempt:
            discard(folder)


def take_away(paths: RunPaths, checkpoint: Path, attempt: int) -> None:
    """Delete a committed checkpoint, unless a newer attempt has begun. A missing one is fine."""
    leaving = checkpoint.parent / f"{_LEAVING}{attempt}.{checkpoint.name}"
    try:
        os.rename(checkpoint, leaving)
    except OSError:
        return
    if is_current(paths, attempt):
        discard(leaving)
    else:
        _put_back(leaving)


def _put_back(leaving: Path) -> None:
    try:
        os.rename(leaving, leaving.parent / leaving.name.split(".", 2)[2])
    except OSError:  # its step has been saved anew meanwhile, or its deletion went on
        discard(leaving)


def discard(folder: Path) -> None:
    """Delete a folder: renamed first, so that nobody ever sees half of it. A missing one is fine."""
    trash = folder.parent / f"{TRASH}{os.getpid()}.{time.monotonic_ns()}.{folder.name}"
    try:
        os.rename(folder, trash)
    except OSError:
        return
    shutil.rmtree(trash, ignore_errors=True)


def _attempt_of(name: str) -> int | None:
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "tmp" and parts[1].isdigit():
        return int(parts[1])
    return None


def _folders(parent: Path) -> list[Path]:
    try:
        return [p for p in parent.iterdir() if p.is_dir() and not p.is_symlink()]
    except OSError:
        return []
