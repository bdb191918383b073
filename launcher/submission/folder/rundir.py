"""Makes a run's folder and the files that a run starts with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from launcher.errors import RunDirError

__all__ = ["claim", "make", "mode_of", "refuse"]

_SUBFOLDERS = ("attempts", "checkpoints", "logs", "submitit")
_PROBE_BYTES = 1024**2


def mode_of(share: str) -> int:
    """Permissions of a run's folder."""
    return 0o750 if share == "group" else 0o700


def refuse(path: Path, error: OSError) -> RunDirError:
    """The one sentence for a folder that cannot be made or written."""
    return RunDirError(f"{path}: {(error.strerror or str(error)).lower()}; runs_dir names where runs lie")


def claim(path: Path, share: str = "none", *, folders: Sequence[str] = _SUBFOLDERS) -> bool:
    """Make the run's folder at ``path`` with the ``folders`` that belong in it; False when it exists already.

    Raises RunDirError when the file system refuses, a full quota included (a MiB is written to find out).
    """
    mode = mode_of(share)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not path.parent.is_dir():
            raise RunDirError(f"{path.parent} is no directory; runs_dir names where runs lie") from None
        return False
    except OSError as error:
        raise refuse(path.parent, error) from None
    try:
        path.chmod(mode)
        for name in folders:
            make(path / name, mode)
        _probe(path)
    except OSError as error:
        raise refuse(path, error) from None
    return True


def make(path: Path, mode: int) -> None:
    """Make a folder with exactly this mode: mkdir's own is cut by the umask. Raises OSError."""
    path.mkdir(mode=0o700)
    path.chmod(mode)


def _probe(path: Path) -> None:
    """Quotas show only in writing: statvfs speaks of the whole file system."""
    probe = path / ".probe"
    try:
        with probe.open("wb") as f:
            f.write(b"\0" * _PROBE_BYTES)
            f.flush()
            os.fsync(f.fileno())
    finally:
        probe.unlink(missing_ok=True)
