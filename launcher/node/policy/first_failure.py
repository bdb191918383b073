"""From what was seen of dying workers to one typed cause: the first failure; the others are its victims.

When a rank dies, its peers' collectives fail within milliseconds with connection errors. Their evidence may even arrive
first. So evidence is ordered by kind before time: an error that says "the other side is gone" never is the cause while
anything else is there.
"""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from launcher.node.wire.messages import WorkerExit
from launcher.run.causes import rank_clause, rank_kind
from launcher.run.error_words import fault_of_gpu, is_lost_peer
from launcher.run.event_parts import Cause, Frame
from launcher.run.messages import WorkerFailure
from launcher.run.units import named_ranks

_OWN_KINDS = ("host_memory", "cuda_oom", "cuda", "gpu", "shm", "import", "disk_full", "unloadable")
"""A rank that failed in this way needs no other one to have failed before, whatever else its words say."""
_WHOLE_CAUSES = 16
"""The history has the whole cause of so many victims, log lines included: of 16,000 it would be 27 MB a round."""


@dataclass(eq=False)
class Failure:
    """What is known of one rank's failure; the worker's words and its exit arrive apart. It equals itself alone."""

    rank: int
    host: str
    t: float
    """When the leader first heard of it, seconds since the epoch (one clock for all nodes)."""
    step: int | None = None
    kind: str | None = None
    exception: str | None = None
    message: str = ""
    frames: list[Frame] = field(default_factory=list)
    caused_by: list[str] = field(default_factory=list)
    victim: bool = False
    """The worker's own word: its exception says that another rank is gone."""
    signal: int | None = None
    exit_code: int | None = None
    last_lines: list[str] = field(default_factory=list)
    oom: bool = False
    after_end: bool = False
    """It came after the leader, or the rank's agent, had begun to end the round: an exit may be our own kill."""

    def add_failed(self, message: WorkerFailure) -> None:
        """Take in the worker's own message."""
        self.exception = message.exception or self.exception
        self.message, self.frames, self.caused_by = message.message, message.frames, message.caused_by
        self.victim = message.victim
        self.kind = message.kind or self.kind
        self.exit_code = self.exit_code if message.exit_code is None else message.exit_code
        self.step = self.step if message.step is None else message.step

    def add_exit(self, message: WorkerExit, *, by_us: bool = False) -> None:
        """Take in the agent's message; ``by_us``: the round was being ended by then."""
        told = self.exception is not None or self.exit_code is not None
        self.after_end = by_us and (self.after_end or not told)
        if not (told and by_us and message.signal is not None):  # else it is our own kill
            self.signal, self.exit_code = message.signal, message.exit_code
        self.oom, self.last_lines = message.oom, message.last_lines
        self.__dict__.pop("log_blames_another", None)

    @cached_property
    def log_blames_another(self) -> bool:
        """The end of its log says that another rank is gone. Each look at a round asks this of all that have failed."""
        tail = "\n".join(self.last_lines)
        return is_lost_peer(tail) and fault_of_gpu(tail) is None


def cause_of(failure: Failure, who: str = "") -> Cause:
    """The CAUSE (`launcher.run.event_parts`) of one rank's failure; ``who`` failed, where that were several."""
    kind = rank_kind(
        told=failure.kind,
        signal=failure.signal,
        oom=failure.oom,
        log=failure.last_lines[-40:],
    )
    return Cause(
        kind=kind,
        text=f"{who or f'rank {failure.rank} on {failure.host}'} {_clause(failure, kind)}",
        exception=failure.exception,
        message=failure.message,
        frames=failure.frames,
        signal=failure.signal,
        exit_code=failure.exit_code,
        last_lines=failure.last_lines[-40:],
        oom=failure.oom,
        caused_by=failure.caused_by,
    )


def is_victim(failure: Failure) -> bool:
    """This failure only says that somebody else is gone."""
    if failure.oom or failure.kind in _OWN_KINDS:
        return False
    if failure.exception is not None:
        return failure.victim
    may_blame = failure.signal == signals.SIGABRT or (failure.signal is None and failure.exit_code)
    return bool(may_blame) and failure.log_blames_another


def left_behind(victims: list[Failure], done: int) -> str | None:
    """Return who waited in an earlier step than ``done``, after which a rank left with all its work done; None where some victim did not.

    The ranks have made different numbers of collective calls: a ``continue`` on one of them pairs each call with another step's.
    """
    steps = {f.rank: f.step for f in victims if f.step is not None and f.step < done}
    if len(steps) < len(victims):
        return None
    step = min(steps.values())
    return f"{named_ranks(steps)} still waited at step {step:,}"


def left_by_itself(failure: Failure) -> bool:
    """The script ended itself with this exit code, by SystemExit: a worker tells of that, of `os._exit` it cannot."""
    return failure.kind == "exit" and failure.signal is None and failure.exit_code is not None


def same_failures(first: Failure, failures: list[Failure]) -> list[Failure]:
    """``first`` and those that failed in the very same way without being its victims: they are one failure of several ranks."""
    key = _likeness(first)
    if key is None or is_victim(first):
        return [first]
    return [f for f in failures if _likeness(f) == key and not is_victim(f)]


def _likeness(f: Failure) -> tuple[Any, ...] | None:
    if f.exception is not None:
        return (f.message, signature(f, f.step))
    return (f.exit_code, f.step) if left_by_itself(f) else None


def symptom_only(failures: list[Failure]) -> bool:
    """All that was heard are victims: the one that failed first has not been heard yet."""
    return all(is_victim(f) or f.after_end for f in failures)


def first_failure(failures: list[Failure]) -> Failure | None:
    """The cause among them, or None when there is no evidence at all."""

    def order(f: Failure) -> tuple[bool, bool, float, int]:
        return (f.after_end and f.exception is None, is_victim(f), f.t, f.rank)

    return min(failures, key=order, default=None)


def victims(failures: list[Failure], *, after: float) -> list[dict[str, Any]]:
    """What the history has of ranks that failed because of another, which failed at ``after``."""
    told: list[dict[str, Any]] = [
        {"rank": f.rank, "host": f.host, "after_s": round(max(0.0, f.t - after), 3)} for f in failures
    ]
    for one, failure in zip(told, failures[:_WHOLE_CAUSES], strict=False):
        one["cause"] = cause_of(failure)
    return told


def signature(cause: Failure | Cause, step: int | None) -> tuple[Any, ...] | None:
    """What makes two exceptions the same one: type, place and step; None for other ends."""
    if not cause.exception:
        return None
    return (cause.exception, step, *((f.file, f.line) for f in cause.frames))


def _clause(f: Failure, kind: str) -> str:
    last = ""
    if f.exception is None and left_by_itself(f):
        last = next((line for line in reversed(f.last_lines) if line.strip()), "")
    return rank_clause(
        kind,
        f.step,
        exception=f.exception,
        message=f.message,
        last=last,
        signal=f.signal,
        exit_code=f.exit_code,
    )
