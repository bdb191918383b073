"""Write small files whole or not at all, and read them without waiting.

The folder decides who may read a run (0700, or 0750 with ``share: group``); what is inside is readable by the group
whatever the umask, but for secrets, which are written with mode 0600.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from launcher.frozen import frozen
from launcher.opening import HISTORY_BYTES, UnfitFileError, open_regular, open_to_append, read_whole

NO_JSON = (ValueError, RecursionError)
"""What `json.loads` raises for torn, foreign and deeply nested texts."""

_MODE = 0o640
_LONGEST_LINE = 16 << 20
"""A sample of ten thousand ranks takes 2 MB; what has no line end for so long is no file of lines."""
_MARK_BYTES = 64
_MOST_LINES = 2_000_000
"""Of a file that is read whole: a line of three bytes takes a hundred as an object."""

WHOLE_BYTES = 8 << 20
"""Of a file of lines: of a larger one `read_thinned` picks some."""


@frozen
class Damage:
    """What could not be read of one file."""

    file: str
    """Its name."""
    why: str = ""
    """Why nothing of it could be read; "" when only lines are lost."""
    lines: int = 0
    """Whole lines that are not JSON objects."""
    torn: bool = False
    """The last line is half-written: its writer is still writing it, or has died."""


def fsync_dir(path: Path) -> None:
    """Make a rename or creation inside ``path`` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: Path, text: str, *, mode: int = _MODE, durable: bool = True) -> None:
    """Replace ``path`` by ``text``: temporary name, fsync, rename, fsync of the folder.

    ``durable=False`` skips both fsyncs: for files that only inform, rewritten every second.
    Raises OSError (disk full, quota) and leaves the old file as it was.
    """
    import tempfile  # with shutil, random and three compressors: readers need none of it

    fd, tmp = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            os.fchmod(fd, mode)  # not by name: in a folder where others can write, that may be another file by now
            if durable:
                os.fsync(f.fileno())
        os.replace(tmp, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(tmp)
        raise
    if durable:
        fsync_dir(path.parent)


def read_object(path: str | Path, damage: list[Damage] | None = None) -> dict[str, Any] | None:
    """Read the JSON object at ``path``; None when it is missing, unreadable or half-written. ``damage`` gets the reason."""
    try:
        value = json.loads(read_whole(path))
        if isinstance(value, dict):
            return value
        why = "it is not a JSON object"
    except FileNotFoundError:
        return None
    except OSError as error:
        why = error.strerror or str(error)
    except NO_JSON:
        why = "it is half-written or not JSON"
    if damage is not None:
        damage.append(Damage(os.path.basename(path), why))
    return None


def append_line(path: Path, value: dict[str, Any], *, durable: bool = False) -> None:
    """Append one JSON object as one line in a single write; on a new line where a writer that died has left half of one.

    Raises OSError, also when the disk took a part of the line only.
    """
    data = (json.dumps(value, separators=(",", ":")) + "\n").encode()
    fd = open_to_append(path, _MODE, flags=os.O_RDWR)
    try:
        size = os.fstat(fd).st_size
        if not size:
            os.fchmod(fd, _MODE)  # the umask may have cut it
        elif os.pread(fd, 1, size - 1) != b"\n":
            data = b"\n" + data
        if os.write(fd, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


def read_lines(path: Path, damage: list[Damage] | None = None) -> list[dict[str, Any]]:
    """Read every whole JSON object in ``path``, in order; a missing file is empty. ``damage`` gets what is left out."""
    return _objects(path, lambda: _all(path), damage)


def _all(path: Path) -> list[bytes]:
    data = read_whole(path, HISTORY_BYTES)
    if data.count(b"\n") > _MOST_LINES:
        raise UnfitFileError(errno.EFBIG, f"it has more than {_MOST_LINES:,} lines", str(path))
    return data.split(b"\n")


class GrowingFile:
    """A file of lines that others append to: each read gives the new ones."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode: tuple[int, int] | None = None
        self._mark = b""
        """The last bytes that were read as whole lines; they end at ``_end``."""
        self._end = self._count = 0

    def read(self) -> tuple[bool, list[bytes]]:
        """Return whether the file is read anew, as it is another one or was cut, and the lines beyond those returned before.

        The last one has no line end (b"" in a whole file); it comes again. Raises OSError as `open_regular`, UnfitFileError
        also for more than any history has.
        """
        with os.fdopen(open_regular(self._path), "rb") as f:
            found = os.fstat(f.fileno())
            if found.st_size > HISTORY_BYTES:
                raise UnfitFileError(errno.EFBIG, f"it is larger than {HISTORY_BYTES >> 20} MiB", str(self._path))
            inode = found.st_dev, found.st_ino
            f.seek(self._end - len(self._mark))
            anew = inode != self._inode or f.read(len(self._mark)) != self._mark
            if anew:
                self._inode, self._mark, self._end, self._count = inode, b"", 0, 0
                f.seek(0)
            data = f.read(max(0, found.st_size - self._end))
        head, ended, rest = data.rpartition(b"\n")
        if self._count + head.count(b"\n") >= _MOST_LINES:
            raise UnfitFileError(errno.EFBIG, f"it has more than {_MOST_LINES:,} lines", str(self._path))
        lines = head.split(b"\n") if ended else []
        self._count += len(lines)
        self._end += len(head) + len(ended)
        self._mark = (self._mark + head + ended)[-_MARK_BYTES:]
        return anew, [*lines, rest]


def read_thinned(
    path: Path, damage: list[Damage] | None = None, *, most_lines: int = 6000, most_bytes: int = WHOLE_BYTES
) -> list[dict[str, Any]]:
    """Read the objects of a file of lines: all, or about ``most_lines`` evenly picked ones with the last.

    Of a file beyond ``most_bytes`` about as much is read, so that a week of many ranks is told as fast as an hour of few.
    ``damage`` is told of what is left out of the lines looked at.
    """

    def lines() -> list[bytes]:
        with os.fdopen(open_regular(path), "rb") as f:
            size = os.fstat(f.fileno()).st_size
            return _spread(f, size, most_lines, most_bytes) if size > most_bytes else _every(f.read(size), most_lines)

    return _objects(path, lines, damage)


def _objects(path: Path, lines: Callable[[], list[bytes]], damage: list[Damage] | None) -> list[dict[str, Any]]:
    try:
        found = lines()
    except FileNotFoundError:
        return []
    except OSError as error:
        if damage is not None:
            damage.append(Damage(path.name, error.strerror or str(error)))
        return []
    return parse_lines(path.name, found, damage)


def _every(data: bytes, most: int) -> list[bytes]:
    *lines, rest = data.split(b"\n")
    stride = max(1, -(-len(lines) // most))
    return [*lines[:-1:stride], *lines[-1:], rest]


def _spread(f: BinaryIO, size: int, most_lines: int, most_bytes: int) -> list[bytes]:
    """Return lines from evenly spread places, and all of the last few."""
    typical = sum(len(_line_from(f, k * size // 8)[1]) for k in range(8)) // 8 + 1
    tail = min(size, 4 * typical)
    while tail < size and _line_from(f, size - tail)[0] >= size:  # the last line is a long one
        tail = min(size, 2 * tail)
    picks = max(1, min(most_lines, most_bytes // (2 * typical)))  # a place is in the middle of a line: one more is read
    out, end = [], 0
    for k in range(picks):
        begun, line = _line_from(f, k * (size - tail) // picks)
        if begun >= end:
            out.append(line.rstrip(b"\n"))
            end = begun + len(line)
    begun = max(end, _line_from(f, size - tail)[0])
    f.seek(begun)
    return [*out, *f.read(max(0, size - begun)).split(b"\n")]


def last_before(path: Path, beyond: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
    """Return the last object of a file of lines that is not ``beyond``, where all that are follow those that are not; None without one.

    It halves the file some thirty times: of hundreds of megabytes it reads as many lines.
    """
    found = None
    try:
        with os.fdopen(open_regular(path), "rb") as f:
            low, high = 0, os.fstat(f.fileno()).st_size
            while low < high:
                middle = (low + high) // 2
                begun, line = _line_from(f, middle)
                value = next(iter(parse_lines(path.name, [line, b""])), None)
                if begun >= high or value is None or beyond(value):
                    high = middle
                else:
                    found, low = value, begun + len(line)
    except OSError:
        return None
    return found


def _line_from(f: BinaryIO, place: int) -> tuple[int, bytes]:
    """Return where the first line at ``place`` or beyond begins, and the line."""
    f.seek(max(0, place - 1))
    if place:
        f.readline(_LONGEST_LINE)
    return f.tell(), f.readline(_LONGEST_LINE)


def parse_lines(file: str, lines: Sequence[bytes], damage: list[Damage] | None = None) -> list[dict[str, Any]]:
    """Read the JSON objects in ``lines`` of ``file``, whose last one has no line end (b"" in a whole file)."""
    out, lost, torn = [], 0, False
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except NO_JSON:
            value = None
        if isinstance(value, dict):
            out.append(value)
        elif number == len(lines):
            torn = True
        else:
            lost += 1
    if damage is not None and (lost or torn):
        damage.append(Damage(file, lines=lost, torn=torn))
    return out
