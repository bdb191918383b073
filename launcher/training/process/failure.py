"""Turns an exception into a message: its kind, and the user's own frames first."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from traceback import extract_tb, print_exception
from types import TracebackType
from typing import Any

import launcher
from launcher.errors import CheckpointError
from launcher.redact import redact
from launcher.run.error_words import is_lost_collective, is_out_of_shm, kind_of_words, raises
from launcher.run.event_parts import Frame
from launcher.run.message_lines import Channel
from launcher.run.messages import WorkerFailure
from launcher.run.tracebacks import WAITS, last_traceback

_PACKAGE = str(Path(launcher.__file__).parent) + os.sep
_LIBRARIES = tuple(
    str(Path(p).resolve()) + os.sep
    for p in {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
)
MOST_CHARS = 4000
"""Of a message that is told."""
_MOST_FRAMES = 20
_MOST_CAUSES = 4
_OF_LOADER = re.compile(r"Caught (\S+) in (.+)\.\nOriginal Traceback ")
"""How torch raises again what went wrong in a DataLoader's worker (`torch._utils.ExceptionWrapper`)."""
_NAMES_TORCHS = re.compile(r"\b(gloo|nccl|c10d|ProcessGroup|TCPStore)", re.IGNORECASE)
"""In the words of a collective that the user waits for by its handle: no frame of torch is below that call."""
_INNER_KINDS = ("cuda_oom", "cuda", "gpu", "host_memory", "shm", "disk_full", "timeout")
"""What stays the reason when the user's code wraps it."""


def report(channel: Channel, error: BaseException, step: int | None) -> None:
    """Tell the leader first, then the log, at once: the agent may end this process as soon as a peer fails, too."""
    channel.send(WorkerFailure(step=step, **describe_error(error, channel.secrets)))
    error = error.with_traceback(user_traceback(error))
    with contextlib.suppress(OSError, ValueError):  # the script may have closed its standard error
        _show(error)


def _show(error: BaseException) -> None:
    """Print it as Python shows an uncaught exception: by ``sys.excepthook``, which torch, rich and sentry replace."""
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as wrong:
        wrong.__context__ = None
        print("Error in sys.excepthook:", file=sys.stderr)
        print_exception(wrong.with_traceback(user_traceback(wrong)))
        print("\nOriginal exception was:", file=sys.stderr)
        print_exception(error)


def describe_error(error: BaseException, secrets: Sequence[str] = ()) -> dict[str, Any]:
    """Return the values of a ``failed`` message: those of `launcher.run.event_parts.Cause`, and ``victim``.

    No text that is shortened here holds ``secrets``; the agent takes them out of the others.
    """
    name, message, frames = _told(error)
    return {
        "exception": name,
        "message": redact(message, secrets, most=MOST_CHARS),
        "frames": _chosen(frames),
        "kind": _kind(error),
        "victim": _is_victim(error),
        "caused_by": [_line(one, secrets) for one in itertools.islice(_related(error), _MOST_CAUSES)],
        "exit_code": exit_code(error) if isinstance(error, SystemExit) else None,
    }


def exit_code(error: BaseException) -> int:
    """Return the exit code that Python gives a process that ends by this exception."""
    if isinstance(error, SystemExit):
        return error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def _told(error: BaseException) -> tuple[str, str, list[Frame]]:
    """Type, message and frames, outermost first; of an exception in a DataLoader's worker those of the worker."""
    kind = type(error)
    name = kind.__name__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__name__}"
    text = _text(error)
    if (wrapped := _OF_LOADER.match(text)) and (inner := last_traceback(text.splitlines())) is not None:
        return wrapped[1], f"{inner.message} (in {wrapped[2]})".strip(), inner.frames
    return name, text, _frames(error)


def _text(error: BaseException) -> str:
    """Its text, and the notes that were added to it (`BaseException.add_note`)."""
    try:
        notes = getattr(error, "__notes__", ())
        text = "" if isinstance(error, SystemExit) and isinstance(error.code, int | None) else str(error)
        return "\n".join([text, *map(str, notes)]) if isinstance(notes, (list, tuple)) and notes else text
    except BaseException as wrong:
        return f"<its text cannot be shown: __str__ raised {type(wrong).__name__}>"


def _kind(error: BaseException) -> str:
    """By type; by the words of torch and the kernel where these raised it; never by the words of the user's own ``raise``.

    A lack of memory, disk or peers stays one when the user's code wraps it (``raise ... from``).
    """
    kind = _special_kind(error)
    cause = error.__cause__
    for _ in range(_MOST_CAUSES):
        if kind is not None or cause is None:
            break
        inner = _special_kind(cause)
        kind = inner if inner in _INNER_KINDS else None
        cause = cause.__cause__
    return kind or "exception"


def _special_kind(error: BaseException, depth: int = _MOST_CAUSES) -> str | None:
    """Its kind, else that of the first member of a group that has one; None: no special one."""
    kind = _kind_alone(error)
    if kind is not None or depth == 0:
        return kind
    kinds = [kind for one in _members(error) if (kind := _special_kind(one, depth - 1)) not in (None, "exit")]
    return min(kinds, key=lambda kind: kind == "timeout", default=None)  # who waited has not failed first


def _kind_alone(error: BaseException) -> str | None:
    import torch

    if isinstance(error, CheckpointError) and error.lasting:
        return "unloadable"
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "cuda_oom"
    if isinstance(error, OSError) and error.errno in _ERRNOS:
        return "shm" if is_out_of_shm(_text(error)) else _ERRNOS[error.errno]
    if isinstance(error, ImportError):
        return "import"
    if isinstance(error, SystemExit):
        return "exit"
    if isinstance(error, MemoryError):
        return "host_memory"
    if type(error).__name__ == "StragglerError":
        return "timeout"
    name, message, frames = _told(error)
    if _own(error) or (name.endswith("DistStoreError") and frames and _is_users(frames[-1].file)):
        return None  # a key that the user's own code waits for is not torch's
    return kind_of_words(name, message)


_ERRNOS = {errno.ENOSPC: "disk_full", errno.EDQUOT: "disk_full", errno.ENOMEM: "host_memory"}


def _own(error: BaseException) -> bool:
    """Whether the user's own code raised it: its words are theirs, and mean what they like."""
    frames = _told(error)[2]
    return bool(frames) and _is_users(frames[-1].file) and raises(frames[-1].code)


def _is_victim(error: BaseException, depth: int = _MOST_CAUSES) -> bool:
    """Whether it, or what it was raised from or while handling, says that another rank is gone; of a group: all members do."""
    return any(_is_lost(one) or _all_lost(one, depth) for one in _chain(error))


def _all_lost(error: BaseException, depth: int) -> bool:
    members = _members(error) if depth else []
    return bool(members) and all(_is_victim(one, depth - 1) for one in members)


def _is_lost(error: BaseException) -> bool:
    """Whether a collective raised it because of another rank; a library's own connections break in the same words."""
    name, message, frames = _told(error)
    if _own(error) or not is_lost_collective(name, message):
        return False
    return name != "RuntimeError" or bool(_NAMES_TORCHS.search(message)) or any(WAITS.search(f.file) for f in frames)


def _members(error: BaseException) -> list[BaseException]:
    """The members of a group."""
    try:
        members = getattr(error, "exceptions", ())  # an ExceptionGroup's, or anything that the user calls so
    except Exception:
        return []
    return [one for one in members if isinstance(one, BaseException)] if isinstance(members, (list, tuple)) else []


def _related(error: BaseException) -> Iterator[BaseException]:
    """The members of a group, then what it was raised from or while handling."""
    yield from _members(error)
    yield from list(_chain(error))[1:]


def _chain(error: BaseException) -> Iterator[BaseException]:
    one: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if one is None:
            return
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _line(error: BaseException, secrets: Sequence[str]) -> str:
    """``KeyError: 'cat' (data.py:12)``."""
    name, message, every = _told(error)
    frames = _chosen(every)
    first = redact(message, secrets, most=MOST_CHARS).strip().splitlines()[:1]
    place = f" ({Path(frames[0].file).name}:{frames[0].line})" if frames else ""
    return f"{': '.join([name, *first])[:300]}{place}"


def _frames(error: BaseException) -> list[Frame]:
    found = [(f.filename, f.lineno or 0, f.name, f.line or "") for f in extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        found.append((str(error.filename), error.lineno or 0, "<module>", (error.text or "").strip()))
    return [Frame(file=file, line=line, function=name, code=code) for file, line, name, code in found]


def _chosen(every: list[Frame]) -> list[Frame]:
    """The user's own frames alone, or all when there are none; innermost first."""
    return ([f for f in every if _is_users(f.file)] or every)[::-1][:_MOST_FRAMES]


def _is_users(file: str) -> bool:
    # A relative name ("<string>") cannot be resolved once the working directory is gone.
    is_absolute = os.path.isabs(file)
    is_librarys = (is_absolute and str(Path(file).resolve()).startswith(_LIBRARIES)) or "site-packages" in file
    return not (is_librarys or file.startswith(("<frozen", _PACKAGE)))


def user_traceback(error: BaseException) -> TracebackType | None:
    """Return the traceback without the launcher's own frames at its top, as its author would see it under python."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith((_PACKAGE, "<frozen")):
        traceback = traceback.tb_next
    return traceback or error.__traceback__
