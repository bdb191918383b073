"""Read a run's folder where the answer decides something: a missing file is a fact, an error of the file system is not.

A network file system that is away for a moment answers EIO, ESTALE or ENOTCONN, or, where the mount itself is gone, ENOENT for
everything. `Path.exists`, `is_dir` and `glob` make False and [] of most of these. Here a name is missing only where the
folder around it was listed and does not hold it. Everything else raises OSError, and is read again (`patiently`; in the
leader `launcher.node.leader.folder_retries`).
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from launcher.opening import UnfitFileError, read_whole
from launcher.run.files import NO_JSON, parse_lines

_T = TypeVar("_T")

PATIENCE_S = 300.0
"""How long the folder is asked again: an NFS server or a Lustre target fails over in one to five minutes. After that it is
better to give the nodes back."""
AGAIN_S = 1.0
_MOST_BYTES = 4 << 30
"""Of one's own history everything is read: by a part of it nothing can be decided."""

_FACTS = {errno.ENOSPC, errno.EDQUOT, errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}
"""Errors that say something of the entry or of the file system itself: another try gets the same. A full disk is handled elsewhere."""


class NotAskedError(OSError):
    """The run's folder did not answer: nothing is known of the file."""


class OwnError(OSError):
    """A refusal by the launcher itself: trying again changes nothing."""


def names(folder: Path, root: Path) -> list[str]:
    """List ``folder``; nothing where it is certainly missing in the run's folder ``root``. Raises OSError."""
    return _known(lambda: os.listdir(folder), folder, root) or []


def exists(path: Path, root: Path) -> bool:
    """Return whether ``path`` exists. Raises OSError when that is not known."""
    return _known(lambda: os.stat(path), path, root) is not None


def _text(path: Path, root: Path) -> bytes | None:
    """Read ``path``; None where it is certainly missing. Raises OSError."""
    return _known(lambda: read_whole(path, _MOST_BYTES), path, root)


def load_object(path: Path, root: Path) -> dict[str, Any] | None:
    """Read the JSON object at ``path``; None where it is certainly missing, or no object. Raises OSError."""
    try:
        value = json.loads(_text(path, root) or b"null")
    except NO_JSON:
        return None
    return value if isinstance(value, dict) else None


def load_lines(path: Path, root: Path) -> list[dict[str, Any]]:
    """Read every whole JSON object in the lines of ``path``; none where it is certainly missing. Raises OSError."""
    return parse_lines(path.name, (_text(path, root) or b"").split(b"\n"))


def may_pass(error: OSError, root: Path) -> bool:
    """Return whether trying again may succeed."""
    if error.errno in _FACTS or isinstance(error, (OwnError, UnfitFileError)):
        return False
    if not isinstance(error, FileNotFoundError) or not isinstance(error.filename, (str, Path)):
        return True
    folder = Path(error.filename).parent
    try:
        return folder in (root, root.parent) or not _is_missing(folder, root)
    except OSError:
        return True


def ask_once(work: Callable[[], _T], root: Path) -> _T:
    """Call ``work``. Raises NotAskedError instead of an OSError that may pass."""
    try:
        return work()
    except OSError as error:
        if isinstance(error, NotAskedError) or not may_pass(error, root):
            raise
        raise NotAskedError(error.errno, error.strerror or str(error), error.filename) from error


def patiently(work: Callable[[], _T], root: Path, *, patience_s: float | None = None) -> _T:
    """Call ``work``, again for ``patience_s`` (else `PATIENCE_S`) while the run's folder does not answer. Raises OSError."""
    end = time.monotonic() + (PATIENCE_S if patience_s is None else patience_s)
    while True:
        try:
            return ask_once(work, root)
        except NotAskedError:
            if time.monotonic() >= end:
                raise
        time.sleep(AGAIN_S)


def _known(look: Callable[[], _T], path: Path, root: Path) -> _T | None:
    try:
        return look()
    except FileNotFoundError:
        if _is_missing(path, root):
            return None
        raise


def _is_missing(path: Path, root: Path) -> bool:
    """Return whether a folder on the way to ``path`` was listed and does not hold it. Raises OSError, also without ``root``.

    One listing says both: a look for the name and a look for its folder could have the mount come back in between.
    """
    try:
        return path.name not in os.listdir(path.parent)
    except FileNotFoundError:
        if path.parent in (root, root.parent):
            raise
        return _is_missing(path.parent, root)
