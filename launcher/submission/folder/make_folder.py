"""Make a run's folder."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from launcher.errors import RunDirError
from launcher.ownership import is_closed
from launcher.run.own_folder import require_safe_place

SUBFOLDERS = ("attempts", "checkpoints", "logs", "submitit")
_PROBE_BYTES = 1024**2


def mode_of(share: str) -> int:
    """Return the permissions of a run's folder."""
    return 0o750 if share == "group" else 0o700


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise RunDirError, which names ``path``, where the file system refuses what is done inside.

    Nobody else may write what is made inside, whatever the umask: submitit's pickles, too, which the nodes execute.
    """
    before = os.umask(0o077)
    os.umask(before | 0o022)
    try:
        yield
    except OSError as error:
        raise RunDirError(
            f"{path}: {(error.strerror or str(error)).lower()}; set runs_dir or $LAUNCHER_RUNS_DIR to another place"
        ) from None
    finally:
        os.umask(before)


def make_run_folder(path: Path, share: str = "none", folders: Sequence[str] = SUBFOLDERS) -> bool:
    """Make the run's folder at ``path`` with the ``folders`` in it; return False when it exists already.

    Raises RunDirError when the file system refuses, a full quota included (a MiB is written to find out), and where everybody
    could put another folder in its place.
    """
    mode, probe = mode_of(share), path / ".probe"
    require_safe_place(path)
    with writing(path.parent):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700)
        except FileExistsError:
            if path.parent.is_dir():
                return False
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
    with writing(path), contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, path, ignore_errors=True)
        path.chmod(mode)
        for name in folders:
            make(path / name, mode)
        with probe.open("wb") as f:  # quotas show only in writing: statvfs tells of the whole file system
            f.write(b"\0" * _PROBE_BYTES)
            f.flush()
            os.fsync(f.fileno())
        probe.unlink()
        undo.pop_all()
    return True


def open_to(root: Path, share: str) -> None:
    """Give a run's folder, and those in it, the permissions of ``share``. Raises RunDirError."""
    with writing(root):
        for folder in (root, *(root / name for name in (*SUBFOLDERS, "code", "lib"))):
            if folder.is_dir() and not folder.is_symlink():
                folder.chmod(mode_of(share))
        if share == "group":
            let_group_read(root / "code")
            let_group_read(root / "lib")


def let_group_read(top: Path) -> None:
    """Let the group read what is below ``top``, whatever the umask was, but for what the owner has closed. Raises OSError.

    Nothing is opened behind a link: without a copy, the code is the user's own folder.
    """
    if top.is_symlink():
        return
    for folder, folders, files in os.walk(top):
        for path in (os.path.join(folder, name) for name in (*folders, *files)):
            if not os.path.islink(path) and not is_closed(found := os.stat(path)):
                mode = found.st_mode
                os.chmod(path, mode | stat.S_IRGRP | (stat.S_IXGRP if mode & stat.S_IXUSR else 0))


def make(path: str | Path, mode: int) -> None:
    """Make a folder with exactly this mode: mkdir's own is cut by the umask. Raises OSError."""
    os.mkdir(path, 0o700)
    os.chmod(path, mode)
