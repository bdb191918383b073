"""An exception as a message: its kind, and the user's own frame first."""

from __future__ import annotations

import errno
import linecache
import os
import sys
import sysconfig
from pathlib import Path
from traceback import print_exception
from types import TracebackType
from typing import Any

import launcher
from launcher.errors import CheckpointError
from launcher.run.messages import Channel

__all__ = ["describe", "report", "user_traceback"]

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
    channel.send("failed", step=step, **describe(error))
    _show(error.with_traceback(user_traceback(error)))


def _show(error: BaseException) -> None:
    """As Python shows what nobody caught: by ``sys.excepthook``, which torch, rich and sentry replace."""
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as wrong:
        wrong.__context__ = None
        print("Error in sys.excepthook:", file=sys.stderr)
        print_exception(wrong.with_traceback(user_traceback(wrong)))
        print("\nOriginal exception was:", file=sys.stderr)
        print_exception(error)


def describe(error: BaseException) -> dict[str, Any]:
    """The values of a ``failed`` message (see CAUSE in `launcher.run.events`), and ``victim``."""
    name = type(error).__name__
    module = type(error).__module__
    return {
        "exception": name if module in ("builtins", "__main__") else f"{module}.{name}",
        "message": str(error)[:_MOST_CHARS],
        "frames": _frames(error),
        "kind": _kind(error),
        "victim": _lost_peer(error),
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


def _lost_peer(error: BaseException) -> bool:
    text = str(error).lower()
    return _from_collective(error) and any(words in text for words in _LOST)


def _frames(error: BaseException) -> list[dict[str, Any]]:
    """Innermost first; the user's own frames alone, or all when there are none."""
    every = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        line = linecache.getline(code.co_filename, traceback.tb_lineno).strip()
        every.append({"file": code.co_filename, "line": traceback.tb_lineno, "function": code.co_name, "code": line})
        traceback = traceback.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        every.append(
            {
                "file": error.filename,
                "line": error.lineno or 0,
                "function": "<module>",
                "code": (error.text or "").strip(),
            }
        )
    own = [frame for frame in every if _is_user(str(frame["file"]))]
    return (own or every)[::-1][:_MOST_FRAMES]


def _is_user(file: str) -> bool:
    return not (
        file.startswith(("<frozen", _PACKAGE))
        or str(Path(file).resolve()).startswith(_LIBRARIES)
        or "site-packages" in file
    )


def user_traceback(error: BaseException) -> TracebackType | None:
    """The traceback without the launcher's own frames at its top: what the program's author would see under python."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith((_PACKAGE, "<frozen")):
        traceback = traceback.tb_next
    return traceback or error.__traceback__
