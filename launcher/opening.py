"""Open the files of a run: regular ones alone. A pipe, a device or a link in a file's place is refused, not waited for or followed."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

OBJECT_BYTES = 64 << 20
"""The most that is read of a file that is one object: the picture of ten thousand ranks takes about 6 MB."""
HISTORY_BYTES = 256 << 20
"""The most that is read of a file of lines to be shown: about a million events."""
_SAFELY = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY  # to open a pipe would wait for its other end


class UnfitFileError(OSError):
    """What stands in a file's place is a link, a pipe or a device, or is larger than any file of that kind: no use to try again."""


def open_regular(path: str | Path, *, follow: bool = False) -> int:
    """Open a regular file for reading; return its descriptor. ``follow`` also opens what a link leads to.

    Raises OSError: IsADirectoryError for a folder, UnfitFileError for a link, a pipe or a device.
    """
    return _opened(path, os.O_RDONLY | (0 if follow else os.O_NOFOLLOW))


def open_to_append(path: str | Path, mode: int, *, flags: int = os.O_WRONLY) -> int:
    """Open a regular file for appending; made with ``mode`` where it is missing. Raises OSError as `open_regular`."""
    return _opened(path, flags | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, mode)


def read_whole(path: str | Path, most: int = OBJECT_BYTES) -> bytes:
    """Read a regular file. Raises OSError as `open_regular`, UnfitFileError also when it is larger than ``most`` bytes."""
    fd = open_regular(path)
    try:
        size = os.fstat(fd).st_size
        data = os.read(fd, size + 1) if size <= most else b""
        while size <= most and len(data) <= most and (more := os.read(fd, 1 << 20)):  # it grows, or has no size (/proc)
            data += more
    finally:
        os.close(fd)
    if size > most or len(data) > most:
        amount = f"{most >> 20} MiB" if most >> 20 else f"{most:,} bytes"
        raise UnfitFileError(errno.EFBIG, f"it is larger than {amount}", str(path))
    return data


def read_start(path: str | Path, most: int) -> bytes:
    """Read a regular file, which a link may lead to: at most ``most`` bytes and one more. Raises OSError as `open_regular`."""
    with open(open_regular(path, follow=True), "rb") as f:
        return f.read(most + 1)


def read_tail(path: str | Path, most: int) -> tuple[bytes, int]:
    """Read the last ``most`` bytes of a regular file; return them and where they begin. Raises OSError as `open_regular`."""
    with os.fdopen(open_regular(path), "rb") as f:
        begin = max(0, f.seek(0, os.SEEK_END) - most)
        f.seek(begin)
        return f.read(most), begin


def _opened(path: str | Path, flags: int, mode: int = 0o600) -> int:
    try:
        fd = os.open(path, flags | _SAFELY, mode)
    except OSError as error:
        if error.errno == errno.ELOOP and os.path.islink(path):
            raise UnfitFileError(errno.ELOOP, "it is a link", str(path)) from None
        if error.errno == errno.ENXIO:  # a pipe that nobody reads, opened for writing; a socket
            raise UnfitFileError(errno.ENXIO, "it is not a regular file", str(path)) from None
        raise
    kind = os.fstat(fd).st_mode
    if stat.S_ISREG(kind):
        if flags & os.O_APPEND:
            os.set_blocking(fd, True)  # other programs may get it as their output
        return fd
    os.close(fd)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise UnfitFileError(errno.EINVAL, "it is not a regular file", str(path))
