"""The worker's side of a checkpoint: a snapshot at the boundary, the write behind it, one in flight.

``state.pt`` (rank 0: everything the ranks share) and ``rank-00003.pt`` (each rank: its generators and partial sums, and of a large
state its share of what all hold alike) are plain ``torch.save`` files. They are written by a thread through a file object whose writes
release the interpreter's lock, and are hashed on the way. Only the leader commits: what lies in a ``tmp`` folder counts for nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import threading
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import torch

from launcher.errors import CheckpointError
from launcher.run.files import fsync_dir
from launcher.run.manifest import HASH_NAME, new_hash
from launcher.run.message_lines import Channel
from launcher.run.messages import WorkerSaveBegun, WorkerSaveFailed, WorkerShard
from launcher.training.checkpoint import readback
from launcher.training.checkpoint.copies import Snapshot

Parts = list[tuple[str, Any]]
"""The names of this rank's files and what goes into each."""
_UNSAVABLE = (CheckpointError, pickle.PicklingError, TypeError, AttributeError, RecursionError)
"""What an object raises that cannot be pickled: another try would fail again."""
SHARED = "state.pt"
GENERATORS = "launcher"
"""The folder for each rank's random numbers, in a folder that user code fills."""
FORMAT = 1
FORMAT_IN_SHARES = 2
"""Some tensors are in the files of other ranks (`shares`)."""


def rank_file(rank: int) -> str:
    """Return the name of one rank's own file."""
    return f"rank-{rank:05d}.pt"


class _HashingFile:
    """The file object torch.save writes to: whole writes, hashed; errors keep their errno."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.hash = new_hash()
        self.size = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.hash.update(view)
        done = 0
        while done < len(view):
            done += os.write(self._fd, view[done:])
        self.size += done
        return done

    def flush(self) -> None:
        """Nothing is buffered here."""


def write_file(path: Path, value: Any, mode: int) -> dict[str, Any]:
    """Write ``value`` to a new file, durably; returns {name, size, hash}. Raises OSError, the disk's own where it was one.

    Quotas and full disks may show at fsync or close alone: both are waited for. Raises CheckpointError, before anything is
    written, when the file could not be loaded again.
    """
    value = readback.loadable(value)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    try:
        file = _HashingFile(fd)
        torch.save(value, file)  # type: ignore[arg-type]
        os.fsync(fd)
    finally:
        os.close(fd)
    return {"name": path.name, "size": file.size, "hash": file.hash.hexdigest()}


class CheckpointWriter:
    """Saves this rank's parts: the main thread takes the snapshot, a thread writes it."""

    def __init__(self, channel: Channel, device: torch.device, *, folder_mode: int = 0o700) -> None:
        self._channel = channel
        self._snapshot = Snapshot(device)
        self._folder_mode = folder_mode
        self._thread: threading.Thread | None = None
        self._held: tuple[int, Path, Parts, dict[str, Any]] | None = None
        """What the newest save writes; None where that is not there any more."""
        self._blocked_s = 0.0
        self.torn = False
        """A tensor was written to before its late copy was made: no tensor is copied late any more."""
        self.saved_step = -1
        """The last step whose parts are durable here."""
        self.last = False
        """All work is done."""
        self.retried = False
        """What fails is tried again at the end of all work, so the other ranks' parts are kept."""
        self.hopeless = False
        """The latest save failed for a reason that a retry does not change."""

    def save(
        self,
        step: int,
        tmp: Path,
        parts: Callable[[], Parts],
        meta: dict[str, Any],
        *,
        copy: bool,
        late: Container[int] = (),
        began: float | None = None,
    ) -> None:
        """Begin to save; returns as soon as training may go on. Waits for an earlier save that is still being written.

        ``copy=False``: the caller changes nothing until `drain`. ``late``: addresses of tensors that the caller changes
        only after `settle`. ``began``: when training began to wait for this save (`time.perf_counter`), if that was before this call.
        """
        began = time.perf_counter() if began is None else began
        self.drain()
        self._channel.send(WorkerSaveBegun(step=step))
        self._held, self._snapshot.torn = None, False  # an earlier save's
        try:
            held = parts()
        except CheckpointError as error:  # of one object's own state, or of parts that can be gathered no more
            self._lose(step, tmp, [], error)
            return
        if not copy:
            self._snapshot.finish_device()
        else:
            try:
                held = self._snapshot.take(held, late)
            except Exception as error:
                self._lose(step, tmp, held, _named(held, error))
                return
        self._blocked_s = time.perf_counter() - began
        self._held = (step, tmp, held, meta)
        self.begin(self._write, *self._held)

    def begin(self, write: Callable[..., None], *what: Any) -> None:
        """Have a thread write a save; nothing else may be in flight. `drain` waits for it."""
        self._thread = threading.Thread(target=write, args=what, name="launcher-save", daemon=True)
        self._thread.start()

    @property
    def holds(self) -> bool:
        """Whether the newest save can be written once more, as it was; not when it was not copied, or changed before it was."""
        return self._held is not None

    def again(self) -> int:
        """Write once more what the newest save could not write, if it `holds` it; returns `saved_step`."""
        self.drain()
        if self._held is not None:
            self._channel.send(WorkerSaveBegun(step=self._held[0]))
            self._write(*self._held)
        return self.saved_step

    def settle(self) -> None:
        """Make the copies that a save in flight still needs, before anything is changed."""
        if self._thread is not None:
            began = time.perf_counter()
            self._snapshot.settle()
            self._blocked_s += time.perf_counter() - began

    def drain(self, waits: Callable[[], object] = lambda: None) -> int:
        """Wait until nothing is in flight, and call ``waits`` before; returns `saved_step`."""
        if self._thread is not None:
            waits()
            self._thread.join()
            self._thread = None
        return self.saved_step

    def _write(self, step: int, tmp: Path, parts: Parts, meta: dict[str, Any]) -> None:
        began, self.hopeless = time.perf_counter(), False
        try:
            self._snapshot.wait()
            if self._snapshot.torn:
                self.torn, self._held = True, None
                raise RuntimeError(
                    "the state was changed outside the optimizer's step while it was being saved; "
                    "from now on training waits for the copy"
                )
            make_folder(tmp, self._folder_mode)
            files = [write_file(tmp / name, value, self._folder_mode & 0o660) for name, value in parts]
            fsync_dir(tmp)
        except Exception as error:
            self._lose(step, tmp, parts, error)
            return
        self.saved_step = step
        self._channel.send(
            WorkerShard(
                step=step,
                files=files,
                seconds=round(time.perf_counter() - began, 6),
                blocked_s=round(self._blocked_s, 6),
                hash_name=HASH_NAME,
                meta=meta,
                last=self.last,
            )
        )

    def _lose(self, step: int, tmp: Path, parts: Parts, error: Exception) -> None:
        number = error_number(error)
        if number is None:
            self.hopeless = isinstance(error, _UNSAVABLE)
        else:
            self.hopeless = number in (errno.EACCES, errno.EPERM, errno.EROFS)
        failed = WorkerSaveFailed(step=step, error=str(error), errno=number, permanent=self.hopeless, last=self.retried)
        self._channel.send(failed)
        # After the message: other ranks then miss the folder, which goes with the last file.
        remove_files(tmp, [name for name, _ in parts])


def _named(parts: Parts, error: Exception) -> Exception:
    """Return the error that names key and type of an object (a lock, a generator) that can neither be copied nor saved."""
    try:
        for _, value in parts:
            readback.loadable(value)
    except Exception as named:
        return named
    return error


def error_number(error: BaseException | None) -> int | None:
    """Return the errno behind an exception, through what it was raised from; None when there is none."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error.errno
        error = error.__cause__ or error.__context__
    return None


def make_folder(tmp: Path, mode: int) -> None:
    """Make the folder that all ranks write into; the first rank to come makes it. Raises OSError.

    The run's folder is never made: files written where its mount is missing would be lost.
    """
    for folder in (tmp.parent, tmp):
        try:
            os.mkdir(folder, mode)
        except FileExistsError:
            continue
        fsync_dir(folder.parent)


def remove_files(tmp: Path, names: list[str]) -> None:
    """Remove this rank's own files of a checkpoint that will not be committed; the folder too once it is empty."""
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(tmp / name)
    with contextlib.suppress(OSError):
        os.rmdir(tmp)
