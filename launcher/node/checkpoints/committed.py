"""Checkpoints on disk: commit, find the newest good one, keep the last k. Blocking; the leader calls it in threads.

The commit: every shard is durable already (workers fsync and report sizes and hashes). The manifest is written last and
fsynced, the folder is renamed to ``step-<step>/``, the parent is fsynced. A kill between any two of these leaves either a
``tmp.`` folder, which nobody reads, or a whole checkpoint.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath
from typing import Any

from launcher.errors import CheckpointError
from launcher.frozen import frozen
from launcher.node.checkpoints import claims, trash
from launcher.node.checkpoints.claims import Claim
from launcher.run import clock
from launcher.run.asking import OwnError, exists, load_object, names
from launcher.run.files import fsync_dir, write_atomic
from launcher.run.manifest import HASH_NAME, MANIFEST, stored_bytes, why_damaged
from launcher.run.paths import RunPaths

_STEP = re.compile(r"step-([0-9]{1,18})\Z")
_LOST = (errno.EIO, errno.EBADMSG, errno.EUCLEAN)
"""The errors of a disk that has lost a block, and of a file system whose own hash of it differs."""
_SMALL_BYTES = 2 * 1024**3
"""Up to this size the content is verified before every resume: xxh3 reads it in about a second. Larger: `launcher.node.leader.verify`."""


@frozen
class CommittedCheckpoint:
    """A committed checkpoint."""

    step: int
    path: Path
    bytes: int = 0
    unread: bool = False
    """Names and sizes are right; its content has not been verified yet."""


@frozen
class Shard:
    """One rank's part of a checkpoint, durable in the temporary folder."""

    rank: int
    files: list[dict[str, Any]]
    hash_name: str = HASH_NAME
    meta: dict[str, Any] | None = None


class RefusedError(OwnError):
    """The files that the ranks wrote are not a checkpoint."""


def committed_steps(paths: RunPaths) -> list[int]:
    """Return the steps of the committed checkpoints, ascending; nothing is verified. Raises OSError when they are not known."""
    steps = map(step_of, names(paths.checkpoints, paths.root))
    return sorted(step for step in steps if step >= 0)


def step_of(path: str | Path) -> int:
    """Return the step in a committed checkpoint's name; -1 when it is none."""
    match = _STEP.match(Path(path).name)
    return int(match.group(1)) if match else -1


def commit_checkpoint(
    paths: RunPaths, *, step: int, claim: Claim, round_: int, world_size: int, shards: list[Shard], reason: str
) -> CommittedCheckpoint:
    """Make the folder of (attempt, round, step) the checkpoint of ``step``.

    Raises OSError: the disk refused, RefusedError: a shard is not what its rank reported, StaleError: this claim is over.
    It may be called again then, and finds a commit that succeeded although an error was reported.
    """
    tmp, target = paths.checkpoint_tmp(claim.attempt, round_, step), paths.checkpoint(step)
    files = [{**entry, "rank": shard.rank} for shard in shards for entry in shard.files]
    size = sum(int(f["size"]) for f in files)
    if exists(target, paths.root) and why_damaged(target) is None:  # saved before and good: a replay has nothing to add
        fsync_dir(paths.checkpoints)
        trash.delete(tmp)
        return CommittedCheckpoint(step, target, size)
    hash_names = {s.hash_name for s in shards} or {HASH_NAME}
    if len(hash_names) > 1:
        raise RefusedError(errno.EIO, "ranks use different hashes (xxhash is installed on some nodes only)")
    manifest = {
        "version": 1,
        "step": step,
        "world_size": world_size,
        "attempt": claim.attempt,
        "round": round_,
        "t": clock.now(),
        "reason": reason,
        "hash_name": hash_names.pop(),
        "bytes": size,
        "files": files,
        "meta": {str(s.rank): s.meta for s in shards if s.meta},
    }
    write_atomic(tmp / MANIFEST, json.dumps(manifest))
    if why := why_damaged(tmp, content=False):
        raise RefusedError(errno.EIO, f"the checkpoint of step {step:,} is incomplete: {why}")
    for folder in {PurePath("."), *(above for f in files for above in PurePath(f["name"]).parents)}:
        fsync_dir(tmp / folder)
    trash.move_checkpoint(paths, target, claim)  # a damaged one; what stands here from now on is a newer leader's
    if not claims.is_current(paths, claim):
        raise claims.StaleError(errno.ESTALE, f"{claim} is over: a newer one has begun")
    try:
        os.rename(tmp, target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise OSError(error.errno, f"step {step} has been saved by a newer leader meanwhile") from error
        raise
    fsync_dir(paths.checkpoints)
    return CommittedCheckpoint(step, target, size)


def newest_good(
    paths: RunPaths,
    *,
    trusted: frozenset[int] = frozenset(),
    damaged: Callable[[Path, str], None] = lambda path, why: None,
    patient: bool = True,
) -> CommittedCheckpoint | None:
    """Return the newest checkpoint that verifies; call ``damaged`` for each newer one that does not.

    ``trusted`` steps were committed by this very leader: large ones are checked by names and sizes alone for now, and come
    back ``unread``. Raises OSError when a newer one could not be read. Unless ``patient``, one that the disk has lost counts
    as damaged instead.
    """
    for step in reversed(committed_steps(paths)):
        folder = paths.checkpoint(step)
        try:
            manifest = load_object(folder / MANIFEST, folder) or {}
            size = stored_bytes(manifest)
            unread = step in trusted and size > _SMALL_BYTES
            why = why_damaged(folder, content=not unread)
            if why is None and manifest.get("step") == step:
                return CommittedCheckpoint(step, folder, size, unread)
        except OSError as error:
            if patient or error.errno not in _LOST:
                raise
            why = str(error)
        damaged(folder, why or f"its manifest is of step {manifest.get('step')}")
    return None


def set_aside_beyond(paths: RunPaths, step: int, claim: Claim) -> list[Path]:
    """Rename checkpoints beyond ``step`` to ``aside.<attempt>.step-…``: kept, and never resumed from. Raises OSError.

    Does nothing when this claim is stale: those may be a newer one's. May be called again after an error.
    """
    moved: list[Path] = []
    beyond = [s for s in committed_steps(paths) if s > step]
    if not claims.is_current(paths, claim):
        return moved
    for newer in beyond:
        source = paths.checkpoint(newer)
        target = source.parent / f"aside.{claim.attempt}.{source.name}"
        os.rename(source, target)
        moved.append(target)
    if exists(paths.checkpoints, paths.root):
        fsync_dir(paths.checkpoints)
    return moved


def collect_garbage(
    paths: RunPaths,
    *,
    claim: Claim,
    keep_last: int,
    keep_every_steps: int | None,
    good: int,
    before: Iterable[int] = (),
) -> None:
    """Take away all but the last ``keep_last`` checkpoints up to ``good`` and the multiples of ``keep_every_steps``.

    ``good`` is the step just committed. ``before``: steps from which on a metric is not finite; the last checkpoint before each is one
    to go back to, and stays. Does nothing when this claim is stale. Raises OSError when that is not known.
    """
    # What lies beyond was damaged when the run went back, or is a commit that has overtaken this one.
    steps = [step for step in committed_steps(paths) if step <= good]
    keep = set(steps[-max(2, keep_last) :])
    if keep_every_steps:
        keep |= {s for s in steps if s % keep_every_steps == 0}
    keep |= {max((s for s in steps if s < bad), default=good) for bad in before}
    if good not in steps or not claims.is_current(paths, claim):
        return
    for step in steps:
        if step not in keep:
            trash.move_checkpoint(paths, paths.checkpoint(step), claim)


def open_foreign(path: str) -> CommittedCheckpoint:
    """Verify another run's checkpoint, as named by ``--fork``. Raises CheckpointError when it is damaged, and OSError."""
    folder = Path(path)
    if why := "it is missing" if not exists(folder, folder) else why_damaged(folder):
        raise CheckpointError(f"The checkpoint {folder} cannot be used: {why}.")
    manifest = load_object(folder / MANIFEST, folder) or {}
    return CommittedCheckpoint(int(manifest["step"]), folder, stored_bytes(manifest))
