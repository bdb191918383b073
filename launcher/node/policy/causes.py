"""From what was seen of dying workers to one typed cause: the first failure; the others are its victims.

When a rank dies, its peers' collectives fail within milliseconds with connection errors. Their evidence may even arrive
first. So evidence is ordered by kind before time: an error that says "the other side is gone" never is the cause while
anything else is there.
"""

from __future__ import annotations

import re
import signal as signals
from dataclasses import dataclass, field
from typing import Any

from launcher.node.wire.messages import WorkerExit
from launcher.run.messages import WorkerFailure
from launcher.run.units import signal_name

__all__ = [
    "Failure",
    "cause_of",
    "first_failure",
    "is_victim",
    "left_by_itself",
    "same_failures",
    "signature",
    "signature_of",
    "symptom_only",
]

_PEER_GONE = re.compile(
    r"connection (was )?(reset|closed|refused|aborted)|broken pipe|closed by peer|peer closed|socket (closed|is closed)"
    r"|remote process (exited|has terminated)|remote error|application timeout caused pair closure"
    r"|recvValue failed|sendBytes failed|recvBytes failed|failed to recv|DistNetworkError|DistStoreError"
    r"|NCCL communicator was aborted|ncclRemoteError|ncclSystemError|ncclInternalError|could not connect|no route to host"
    r"|Gloo connectFullMesh failed|store.*(closed|gone|timed? ?out)|wait timeout after|Timed out waiting \d+ ?ms for (recv|send)"
    r"|watchdog caught collective operation timeout",
    re.IGNORECASE,
)
_MOST_CHARS = 300
_CUDA_OOM = re.compile(r"CUDA out of memory|CUDA error: out of memory|OutOfMemoryError", re.IGNORECASE)
_DISK = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)


@dataclass
class Failure:
    """What is known of one rank's failure; the worker's words and its exit arrive apart."""

    rank: int
    host: str
    t: float
    """When the leader first heard of it, seconds since the epoch (one clock for all nodes)."""
    step: int | None = None
    kind: str | None = None
    exception: str | None = None
    message: str = ""
    frames: list[dict[str, Any]] = field(default_factory=list)
    signal: int | None = None
    exit_code: int | None = None
    last_lines: list[str] = field(default_factory=list)
    oom: bool = False
    after_end: bool = False
    """The exit came after the leader had ended the round: it is our own kill."""

    def add_failed(self, message: WorkerFailure) -> None:
        """Take in the worker's own message."""
        self.exception = message.exception or self.exception
        self.message, self.frames = message.message, message.frames
        self.kind = message.kind or self.kind
        self.exit_code = self.exit_code if message.exit_code is None else message.exit_code
        self.step = self.step if message.step is None else message.step

    def add_exit(self, message: WorkerExit, *, ending: bool = False) -> None:
        """Take in the agent's message; ``ending``: the leader had ended the round by then."""
        told = self.exception is not None or self.exit_code is not None
        if not (told and ending and message.signal is not None):  # else it is our own kill
            self.signal, self.exit_code = message.signal, message.exit_code
        self.oom, self.last_lines = message.oom, message.last_lines


def cause_of(failure: Failure, who: str = "") -> dict[str, Any]:
    """The CAUSE (`launcher.run.events`) of one rank's failure; ``who`` failed, where that were several."""
    return {
        "kind": _kind(failure),
        "text": _text(failure, who or f"rank {failure.rank} on {failure.host}"),
        "exception": failure.exception,
        "message": failure.message,
        "frames": failure.frames,
        "signal": failure.signal,
        "exit_code": failure.exit_code,
        "last_lines": failure.last_lines[-40:],
        "oom": failure.oom,
    }


def is_victim(failure: Failure) -> bool:
    """This failure only says that somebody else is gone."""
    if failure.oom or failure.kind in ("oom", "cuda_oom", "import", "disk_full", "unloadable"):
        return False
    if failure.exception is not None:
        return bool(_PEER_GONE.search(f"{failure.exception}: {failure.message}"))
    tail = "\n".join(failure.last_lines[-20:])
    if failure.signal == signals.SIGABRT or (failure.signal is None and failure.exit_code):
        return bool(_PEER_GONE.search(tail))
    return False


def left_by_itself(failure: Failure) -> bool:
    """The script ended itself with this exit code, by SystemExit: a worker tells of that, of `os._exit` it cannot."""
    return failure.kind == "exit" and failure.signal is None and bool(failure.exit_code)


def same_failures(first: Failure, failures: list[Failure]) -> list[Failure]:
    """``first`` and those that failed in the very same way without being its victims: they are one failure of several ranks."""
    key = _likeness(first)
    if key is None or is_victim(first):
        return [first]
    return [f for f in failures if _likeness(f) == key and not is_victim(f)]


def _likeness(f: Failure) -> tuple[Any, ...] | None:
    if f.exception is not None:
        return (f.message, signature(f))
    return (f.exit_code, f.step) if left_by_itself(f) else None


def symptom_only(failures: list[Failure]) -> bool:
    """All that was heard are victims: the one that failed first has not been heard yet."""
    return all(is_victim(f) or f.after_end for f in failures)


def first_failure(failures: list[Failure]) -> Failure | None:
    """The cause among them, or None when there is no evidence at all."""

    def order(f: Failure) -> tuple[bool, bool, float, int]:
        return (f.after_end and f.exception is None, is_victim(f), f.t, f.rank)

    return min(failures, key=order, default=None)


def signature(failure: Failure) -> tuple[Any, ...] | None:
    """What makes two exceptions the same one: type, place and step; None for other ends."""
    return None if failure.exception is None else signature_of(cause_of(failure), failure.step)


def signature_of(cause: dict[str, Any], step: int | None) -> tuple[Any, ...] | None:
    """`signature` from what the history holds."""
    if not cause.get("exception"):
        return None
    frames = cause.get("frames") or []
    return (cause["exception"], step, *((f.get("file"), f.get("line")) for f in frames if isinstance(f, dict)))


def _kind(f: Failure) -> str:
    if f.oom:
        return "oom"
    if f.exception is not None:
        text = f"{f.exception}: {f.message}"
        if f.exception.split(".")[-1] in ("ImportError", "ModuleNotFoundError"):
            return "import"
        if _CUDA_OOM.search(text):
            return "cuda_oom"
        if _DISK.search(text):
            return "disk_full"
        if f.kind in ("timeout", "start", "oom", "import", "cuda_oom", "disk_full", "unloadable"):
            return f.kind
        return "exception"
    return "signal" if f.signal is not None else "exit"


def _text(f: Failure, who: str) -> str:
    at = f" at step {f.step}" if f.step is not None else ""
    if f.oom:
        return f"{who} was killed because the memory limit was exceeded{at}"
    if f.exception is not None:
        first_line = f.message.strip().splitlines()[0] if f.message.strip() else ""
        return f"{who} raised {f.exception}{': ' + first_line if first_line else ''}{at}"
    if f.signal is not None:
        return f"{who} was killed by {signal_name(f.signal)}{at}"
    if f.exit_code is None:
        return f"{who} vanished{at}"
    last = next((line.strip() for line in reversed(f.last_lines) if line.strip()), "") if left_by_itself(f) else ""
    return f"{who} exited with code {f.exit_code}{at}{': ' + last[:_MOST_CHARS] if last else ''}"
