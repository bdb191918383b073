"""Turns an exception into a message: its kind, and the user's own frames first."""

from __future__ import annotations

import errno
import os
import sys
import sysconfig
from pathlib import Path
from traceback import extract_tb, print_exception
from types import TracebackType
from typing import Any

import launcher
from launcher.errors import CheckpointError
from launcher.run.message_lines import Channel
from launcher.run.messages import WorkerFailure

__all__ = ["describe_error", "report", "user_traceback"]

_PACKAGE = str(Path(launcher.__file__).parent) + os.sep
_LIBRARIES = tuple(
    str(Path(p).resolve()) + os.sep
    for p in {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
)
_LOST = (
    "connection closed by peer",
    "connection reset by peer",
    "socket closed",
    "broken pipe",
    "connection refused",
    "remote process exited",
    "was aborted",
    "no error was reported by the peer",
)
_LATE = ("timed out", "timeout")
_MOST_CHARS = 4000
_MOST_FRAMES = 20


def report(channel: Channel, error: BaseException, step: int | None) -> None:
    """Tell the leader first, then the log, at once: the agent may end this process as soon as a peer fails, too."""
    channel.send(WorkerFailure(step=step, **describe_error(error)))
    error = error.with_traceback(user_traceback(error))
    try:  # as Python shows an uncaught exception: by ``sys.excepthook``, which torch, rich and sentry replace
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as wrong:
        wrong.__context__ = None
        print("Error in sys.excepthook:", file=sys.stderr)
        print_exception(wrong.with_traceback(user_traceback(wrong)))
        print("\nOriginal exception was:", file=sys.stderr)
        print_exception(error)


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return the values of a ``failed`` message (see CAUSE in `launcher.run.events`), and ``victim``."""
    name, module, text = type(error).__name__, type(error).__module__, str(error).lower()
    return {
        "exception": name if module in ("builtins", "__main__") else f"{module}.{name}",
        "message": str(error)[:_MOST_CHARS],
        "frames": _frames(error),
        "kind": _kind(error),
        "victim": _from_collective(error) and any(words in text for words in _LOST),
    }


def _kind(error: BaseException) -> str:
    import torch

    if isinstance(error, CheckpointError) and error.lasting:
        return "unloadable"
    text = str(error).lower()
    if isinstance(error, torch.cuda.OutOfMemoryError) or ("cuda" in text and "out of memory" in text):
        return "cuda_oom"
    if isinstance(error, MemoryError) or "can't allocate memory" in text or "not enough memory" in text:
        return "oom"
    if isinstance(error, ImportError):
        return "import"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk_full"
    if type(error).__name__ == "StragglerError" or (_from_collective(error) and any(w in text for w in _LATE)):
        return "timeout"
    return "exception"


def _from_collective(error: BaseException) -> bool:
    from torch import distributed as dist

    names = ("DistError", "DistBackendError", "DistNetworkError", "DistStoreError")
    kinds = tuple(getattr(dist, n) for n in names if hasattr(dist, n))
    text = str(error).lower()
    return isinstance(error, kinds) or (
        isinstance(error, RuntimeError) and any(w in text for w in ("gloo", "nccl", "socket", "store"))
    )


def _frames(error: BaseException) -> list[dict[str, Any]]:
    """Return the user's own frames alone, or all when there are none; innermost first."""
    every = [(f.filename, f.lineno, f.name, f.line) for f in extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        every.append((error.filename, error.lineno or 0, "<module>", (error.text or "").strip()))
    own = [frame for frame in every if _is_users(frame[0])]
    names = ("file", "line", "function", "code")
    return [dict(zip(names, frame, strict=True)) for frame in (own or every)[::-1][:_MOST_FRAMES]]


def _is_users(file: str) -> bool:
    is_librarys = str(Path(file).resolve()).startswith(_LIBRARIES) or "site-packages" in file
    return not (is_librarys or file.startswith(("<frozen", _PACKAGE)))


def user_traceback(error: BaseException) -> TracebackType | None:
    """Return the traceback without the launcher's own frames at its top, as its author would see it under python."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith((_PACKAGE, "<frozen")):
        traceback = traceback.tb_next
    return traceback or error.__traceback__
