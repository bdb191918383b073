"""What tests that were killed have left: clusters, small disks and users. What a living process has is left alone.

The names are those of tests/cluster.py, where a test process holds the lock as long as it lives, and of tests/user.py, where its number
is part of the name.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from layout import Layout, lock_file, mount_points, remove_tree, sh

_LOCKS = Path("/run/lock")
_CLUSTERS = Path("/var/lib")
_MOUNT_POINTS = Path("/run")
_HOMES = Path("/var/tmp")


def clusters() -> Iterator[Layout]:
    """Clusters of tests whose process has ended; each is held, and its disk taken away, as long as the caller has it."""
    found = [path.name for folder in (_LOCKS, _CLUSTERS) for path in folder.glob("launcher-cluster-tests-*")]
    for name in sorted({name for name in found if re.fullmatch(r"launcher-cluster-tests-\w+-\d+", name)}):
        with contextlib.suppress(BlockingIOError), lock_file(_LOCKS / name, wait=False):
            disk = _CLUSTERS / f"{name}.disk"
            _unmount(disk)
            remove_tree(disk)
            yield Layout(_CLUSTERS / name)


def remove_users() -> list[str]:
    """Users of tests whose process has ended, with their homes and what was mounted for them; their names."""
    gone = set()
    for folder in (*_MOUNT_POINTS.glob("lcuser*-*"), *_HOMES.glob("lcuser*-*")):
        name = folder.name.partition("-")[0]
        number = name.removeprefix("lcuser")
        if not number.isdigit() or Path(f"/proc/{number}").exists():
            continue
        gone.add(name)
        if folder.parent == _MOUNT_POINTS:
            for point in folder.iterdir():
                _unmount(point)
                point.rmdir()  # never what is mounted there: it is the machine's Python
            folder.rmdir()
        else:
            remove_tree(folder)
    for name in gone:
        subprocess.run(["userdel", name], capture_output=True, check=False)
    return sorted(gone)


def _unmount(path: Path) -> None:
    while path in mount_points():
        sh("umount", "-l", str(path))
