"""Write the archive of a Python environment beside the runs: one file, which later runs use again."""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
import tempfile
import time
from pathlib import Path

from launcher.errors import SnapshotError
from launcher.ownership import other_writer
from launcher.run.units import size
from launcher.submission.facts.facts import StagedFiles
from launcher.submission.facts.staged_files import members

_UNUSED_DAYS = 30
_ABANDONED_S = 86_400


def write(staged: StagedFiles) -> None:
    """Make the archive, unless it is there; either way it counts as used now.

    When one is made, archives that no job has used for `_UNUSED_DAYS` are removed. Raises SnapshotError.
    """
    path = Path(staged.archive)
    try:
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir(mode=0o700)
        _require_own(path.parent)
        if path.exists():
            _require_own(path)
            os.utime(path)
            return
        _remove_unused(path.parent)
        found = os.statvfs(path.parent)
        free = found.f_bavail * found.f_frsize
        if free < staged.size * 1.1:
            raise SnapshotError(
                f"{path.parent}: the archive of the environment takes {size(staged.size)}, "
                f"and {size(free)} are free; free some space, or remove environment.stage"
            )
        fd, temporary = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
        try:
            _pack(fd, staged)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except (OSError, tarfile.TarError) as error:
        raise SnapshotError(f"{path}: the environment cannot be packed: {error}") from None


def _require_own(path: Path) -> None:
    """Refuse what somebody else could have written: nodes run the Python in it. Raises SnapshotError."""
    found = os.lstat(path)
    why = "is a link" if stat.S_ISLNK(found.st_mode) else other_writer(path, found)
    if why:
        raise SnapshotError(f"{path} {why}, and nodes would run the Python in it: remove it")


def _pack(fd: int, staged: StagedFiles) -> None:
    with open(fd, "wb") as f:
        with tarfile.open(fileobj=f, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for name, source in members(staged.roots, staged.packages):
                try:
                    _add(archive, source, name)
                except FileNotFoundError:  # a Python that runs meanwhile replaces what it has compiled
                    continue
                except PermissionError:  # what it compiled for itself alone, under the umask 077: Python does without
                    if not name.endswith(".pyc"):
                        raise
        f.flush()
        os.fsync(f.fileno())


def _add(archive: tarfile.TarFile, source: str, name: str) -> None:
    if not stat.S_ISREG(os.lstat(source).st_mode):
        archive.add(source, name, recursive=False, filter=_removable)
        return
    with open(source, "rb") as f:
        member = archive.gettarinfo(arcname=name, fileobj=f)
        archive.addfile(member, f if member.isreg() else None)


def _removable(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Have the user be able to remove what a node unpacks: of a read-only installation, too."""
    if member.isdir():
        member.mode |= stat.S_IRWXU
    return member


def _remove_unused(folder: Path) -> None:
    """Remove archives that no job has used of late; what a submission that was killed has left, after a day."""
    now = time.time()
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):
            limit_s = _UNUSED_DAYS * 86_400 if entry.name.endswith(".tar") else _ABANDONED_S
            if now - entry.stat(follow_symlinks=False).st_mtime > limit_s:
                os.unlink(entry.path)
