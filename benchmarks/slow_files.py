#!/usr/bin/env python3
"""A shared file system that is slow: shows a folder elsewhere, delays each operation, counts them (FUSE; needs mfusepy, libfuse3).

    python benchmarks/slow_files.py FOLDER MOUNTPOINT --delay-ms 1 --counts counts.json

Answers are kept by the kernel for 3 s, as an NFS client keeps a file's attributes (acregmin), and each open asks again, as NFS does.
The counts since the start are written to --counts on SIGUSR1, and begin anew.
"""

from __future__ import annotations

# ruff: noqa: D102 (FUSE says what its operations are)
import argparse
import functools
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mfusepy

KEPT_S = 3.0


def served(operation: Callable[..., Any]) -> Callable[..., Any]:
    """An operation on the folder that is shown: counted, delayed, its path made the real one."""

    @functools.wraps(operation)
    def call(self: SlowFiles, path: str, *args: Any, **named: Any) -> Any:
        with self.guard:
            self.counts[operation.__name__] += 1
        time.sleep(self.delay_s)
        return operation(self, self.root + path, *args, **named)

    return call


class SlowFiles(mfusepy.Operations):
    """The operations that training needs, each after a delay."""

    use_ns = True

    def __init__(self, root: str, delay_s: float) -> None:
        self.root, self.delay_s = root, delay_s
        self.counts: Counter[str] = Counter()
        self.guard = threading.Lock()

    @served
    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        found = os.lstat(path)
        times = {f"st_{kind}time": getattr(found, f"st_{kind}time_ns") for kind in "amc"}
        same = ("st_gid", "st_mode", "st_nlink", "st_size", "st_uid", "st_blocks", "st_ino")
        return {name: getattr(found, name) for name in same} | times

    @served
    def access(self, path: str, mode: int) -> int:
        if not os.access(path, mode):
            raise mfusepy.FuseOSError(13)
        return 0

    @served
    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(path)]

    @served
    def readlink(self, path: str) -> str:
        return os.readlink(path)

    @served
    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags)

    @served
    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)

    @served
    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    @served
    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    @served
    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        os.truncate(path, length)
        return 0

    @served
    def flush(self, path: str, fh: int) -> int:
        return 0

    @served
    def fsync(self, path: str, datasync: int, fh: int) -> int:
        os.fsync(fh)
        return 0

    @served
    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    @served
    def mkdir(self, path: str, mode: int) -> int:
        os.mkdir(path, mode)
        return 0

    @served
    def rmdir(self, path: str) -> int:
        os.rmdir(path)
        return 0

    @served
    def unlink(self, path: str) -> int:
        os.unlink(path)
        return 0

    @served
    def rename(self, old: str, new: str) -> int:
        os.rename(old, self.root + new)
        return 0

    @served
    def symlink(self, target: str, source: str) -> int:  # mfusepy passes the new link's path first
        os.symlink(source, target)
        return 0

    @served
    def chmod(self, path: str, mode: int) -> int:
        os.chmod(path, mode)
        return 0

    @served
    def chown(self, path: str, uid: int, gid: int) -> int:
        os.lchown(path, uid, gid)
        return 0

    @served
    def utimens(self, path: str, times: Any = None) -> int:
        os.utime(path, ns=times, follow_symlinks=False)
        return 0

    @served
    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(path)
        names = (
            "f_bavail",
            "f_bfree",
            "f_blocks",
            "f_bsize",
            "f_favail",
            "f_ffree",
            "f_files",
            "f_frsize",
            "f_namemax",
        )
        return {name: getattr(found, name) for name in names}


def main() -> None:
    """Serve until the mount is gone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("mountpoint", type=Path)
    parser.add_argument("--delay-ms", type=float, default=1.0)
    parser.add_argument("--counts", type=Path, required=True)
    given = parser.parse_args()
    files = SlowFiles(str(given.folder.resolve()), given.delay_ms / 1e3)

    def tell() -> None:
        while signal.sigwait([signal.SIGUSR1]):
            with files.guard:
                counts, files.counts = files.counts, Counter()
            given.counts.with_suffix(".new").write_text(json.dumps(counts))
            given.counts.with_suffix(".new").rename(given.counts)

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    threading.Thread(target=tell, daemon=True).start()
    mfusepy.FUSE(
        files, str(given.mountpoint), foreground=True, nothreads=False, allow_other=True, default_permissions=True,
        attr_timeout=KEPT_S, entry_timeout=KEPT_S, negative_timeout=0,
    )  # fmt: skip


if __name__ == "__main__":
    main()
