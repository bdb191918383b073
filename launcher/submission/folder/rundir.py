"""Make a run's folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from launcher.errors import RunDirError

SUBFOLDERS = ("attempts", "checkpoints", "logs", "submitit")
_PROBE_BYTES = 1024**2


def mode_of(share: str) -> int:
    """Return the permissions of a run's folder."""
    return 0o750 if share == "group" else 0o700


def folder_error(path: Path, error: OSError) -> RunDirError:
    """Return the error for a folder that cannot be made or written."""
    return RunDirError(
        f"{path}: {(error.strerror or str(error)).lower()}; set runs_dir or $LAUNCHER_RUNS_DIR to another place"
    )


def make_run_folder(path: Path, share: str = "none", folders: Sequence[str] = SUBFOLDERS) -> bool:
    """Make the run's folder at ``path`` with the ``folders`` in it; return False when it exists already.

    Raises RunDirError when the file system refuses, a full quota included (a MiB is written to find out).
    """
    mode, probe = mode_of(share), path / ".probe"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not path.parent.is_dir():
            raise RunDirError(
                f"{path.parent} is no directory; set runs_dir or $LAUNCHER_RUNS_DIR to another place"
            ) from None
        return False
    except OSError as error:
        raise folder_error(path.parent, error) from None
    try:
        path.chmod(mode)
        for name in folders:
            make(path / name, mode)
        try:  # quotas show only in writing: statvfs tells of the whole file system
            with probe.open("wb") as f:
                f.write(b"\0" * _PROBE_BYTES)
                f.flush()
                os.fsync(f.fileno())
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise folder_error(path, error) from None
    return True


def make(path: Path, mode: int) -> None:
    """Make a folder with exactly this mode: mkdir's own is cut by the umask. Raises OSError."""
    path.mkdir(mode=0o700)
    path.chmod(mode)
