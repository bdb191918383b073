"""Write the archive of a Python environment beside the runs: one file, which later runs use again."""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
import time
from pathlib import Path

from launcher.errors import SnapshotError
from launcher.run.units import size
from launcher.submission.facts.facts import StagedFiles
from launcher.submission.facts.staged_files import members

_UNUSED_DAYS = 30
_ABANDONED_S = 86_400


def write(path: Path, staged: StagedFiles) -> None:
    """Make the archive at ``path``, unless it is there; either way it counts as used now.

    Archives that no submission has used for `_UNUSED_DAYS` are removed. Raises SnapshotError.
    """
    with contextlib.suppress(FileNotFoundError):
        os.utime(path)
        return
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        _remove_unused(path.parent)
        found = os.statvfs(path.parent)
        free = found.f_bavail * found.f_frsize
        if free < staged.size * 1.1:
            raise SnapshotError(
                f"{path.parent}: the archive of the environment takes {size(staged.size)}, "
                f"and {size(free)} are free; free some space, or remove environment.stage"
            )
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            _pack(temporary, staged)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, tarfile.TarError) as error:
        raise SnapshotError(f"{path}: the environment cannot be packed: {error}") from None


def _pack(path: Path, staged: StagedFiles) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "wb") as f:
        with tarfile.open(fileobj=f, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for name, source in members(staged.roots, staged.packages):
                with contextlib.suppress(
                    FileNotFoundError
                ):  # a Python that runs meanwhile replaces what it has compiled
                    _add(archive, source, name)
        f.flush()
        os.fsync(f.fileno())


def _add(archive: tarfile.TarFile, source: str, name: str) -> None:
    if not stat.S_ISREG(os.lstat(source).st_mode):
        archive.add(source, name, recursive=False)
        return
    with open(source, "rb") as f:
        member = archive.gettarinfo(arcname=name, fileobj=f)
        archive.addfile(member, f if member.isreg() else None)


def _remove_unused(folder: Path) -> None:
    """Remove archives that no run was submitted with of late; what a submission that was killed has left, after a day."""
    now = time.time()
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):
            limit_s = _UNUSED_DAYS * 86_400 if entry.name.endswith(".tar") else _ABANDONED_S
            if now - entry.stat(follow_symlinks=False).st_mtime > limit_s:
                os.unlink(entry.path)
