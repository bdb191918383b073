"""Replace files of a run's folder at a resubmission: one command at a time, and all of them or none."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.errors import StateError
from launcher.run import event_lines, events, index
from launcher.run.files import read_object
from launcher.run.paths import RunPaths
from launcher.submission.folder import make_folder

_BEFORE = ".before."
_WRITTEN_OVER = ("submission.json", "job.yaml", "spec.json", "submit.sbatch")
"""What a resubmission replaces in one step: until then others read it. The first is kept first, and given up last."""


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Let one command at a time resubmit what is in a run's or a sweep's folder, or remove it.

    Raises StateError while another one does, RunDirError where the folder cannot be written.
    """
    with make_folder.writing(folder):
        fd = _lock_file(folder)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateError(f"{folder.name} is being resubmitted or removed by another command") from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(fd)


def _lock_file(folder: Path) -> int:
    """Open what is locked: a file, as a network file system locks no folder; the folder where there is room for no file."""
    try:
        return os.open(folder / ".resubmitting", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return os.open(folder, os.O_RDONLY | os.O_CLOEXEC)


def lock_run(paths: RunPaths) -> contextlib.AbstractContextManager[None]:
    """Let one command at a time resubmit the run, or points of its sweep, or remove what is left of it. Raises as `lock`."""
    above = paths.root.parent
    return lock(above if index.is_sweep(above) else paths.root)


@contextlib.contextmanager
def replacing(runs: Sequence[RunPaths], names: Sequence[str]) -> Iterator[None]:
    """Keep files of the runs' folders under another name while a resubmission inside replaces them, job and spec as well.

    After an error they are back, what was written in their places is removed, and each history has a warning. Without an
    error the old ones are removed; one that cannot be is left, as SLURM has the job. Raises OSError.

    `restore_kept` must have been called: what an earlier resubmission has left is overwritten.
    """
    over = [name for name in _WRITTEN_OVER if name not in names]
    kept_as = {paths.root / name: kept_name(paths.root / name) for paths in runs for name in (*over, *names)}
    there = [old for old in kept_as if os.path.lexists(old)]
    try:
        for old in there:
            (_copy if old.name in over else os.replace)(old, kept_as[old])
        yield
    except BaseException as error:
        warning = events.event("warning", attempt=None, text=f"it was not resubmitted: {error}")
        with contextlib.ExitStack() as back:  # last in, first out; one that fails keeps no other from it
            for paths in runs:
                back.callback(event_lines.append, paths.events, warning)
            for old, kept in kept_as.items():
                back.callback(_put_back, old, kept, was_there=old in there)
        raise
    _forget(list(kept_as.values()))


def kept_name(path: Path) -> Path:
    """Return the name under which `replacing` keeps ``path``."""
    return path.with_name(f"{_BEFORE}{path.name}")


def kept_files(paths: RunPaths) -> list[Path]:
    """Return the old files that a resubmission keeps; where none is at work, one has been killed."""
    return sorted(paths.root.glob(f"{_BEFORE}*"))


def restore_kept(runs: Sequence[RunPaths]) -> None:
    """Finish what a resubmission that was killed has left: the old files are back, unless it was recorded. Raises OSError."""
    for paths in runs:
        kept = kept_files(paths)
        before = kept_name(paths.submission)
        if read_object(before) != read_object(paths.submission):
            _forget([before, *kept])
            continue
        for path in sorted(kept, key=before.__eq__):  # last what tells whether it was recorded
            _put_back(path.with_name(path.name.removeprefix(_BEFORE)), path, was_there=True)


def _forget(kept: Sequence[Path]) -> None:
    for path in reversed(kept):
        with contextlib.suppress(OSError):
            remove(path)


def _copy(old: Path, kept: Path) -> None:
    """Keep a file that will be replaced, not changed, under another name as well."""
    try:
        os.link(old, kept)
    except OSError:  # a file system without hard links
        shutil.copy2(old, kept)


def _put_back(old: Path, kept: Path, *, was_there: bool) -> None:
    moved = os.path.lexists(kept)
    if moved or not was_there:
        remove(old)
    if moved:
        os.replace(kept, old)


def remove(path: Path) -> None:
    """Remove a file, a folder or a link (not what it leads to), where there is one."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
