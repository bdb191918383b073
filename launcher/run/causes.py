"""What can end a rank, a round, an attempt or a run: the one table that the nodes decide and the report explains by. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from launcher.run.error_words import fault_of_gpu, is_late_collective, is_out_of_shm, kind_of_words, raises
from launcher.run.tracebacks import last_stack, parting_traceback
from launcher.run.units import signal_name


class CauseKind(NamedTuple):
    """One row: a kind of cause, as a CAUSE, `launcher why` and its ``--json`` name it."""

    ends: str
    """rank, round, attempt or run."""
    means: str
    """One clause."""
    evidence: tuple[str, ...] = ()
    """The evidence of decisions (`launcher.node.policy.decisions.Kind`) that is of this kind."""


CAUSES: dict[str, CauseKind] = {
    "exception": CauseKind("rank", "the user's code raised an exception"),
    "exit": CauseKind("rank", "the process ended with an exit code"),
    "signal": CauseKind("rank", "a signal killed the process"),
    "oom": CauseKind("rank", "the kernel killed the process for exceeding the memory limit"),
    "host_memory": CauseKind("rank", "the process could not get the memory that it asked for"),
    "cuda_oom": CauseKind("rank", "GPU memory ran out"),
    "cuda": CauseKind("rank", "a kernel failed on the GPU: a failed assertion, or memory that is not the program's"),
    "gpu": CauseKind("rank", "the GPU failed: an uncorrectable memory error, or it is lost"),
    "shm": CauseKind("rank", "shared memory (/dev/shm) ran out"),
    "disk_full": CauseKind("rank", "the disk is full, or the quota is used up", ("disk_at_risk",)),
    "import": CauseKind("rank", "a package could not be imported"),
    "timeout": CauseKind("rank", "other ranks did not come to a collective in time"),
    "unloadable": CauseKind("rank", "the checkpoint holds what cannot be loaded: a restart would fail in the same way"),
    "node": CauseKind("round", "a node is gone", ("node_lost", "node_leaves")),
    "store": CauseKind("round", "the rendezvous store is gone", ("store_failed",)),
    "hang": CauseKind("round", "no rank made progress", ("hang",)),
    "start": CauseKind("attempt", "nodes did not start, or the leader can listen on no port", ("nodes_missing", "ports_taken")),
    "preflight": CauseKind("attempt", "nodes failed the check before the start", ("preflight_failed",)),
    "preempted": CauseKind("attempt", "SLURM preempted the job", ("preempted", "preempted_now")),
    "time_limit": CauseKind("attempt", "the job reached its time limit", ("time_limit",)),
    "script_gone": CauseKind("attempt", "the batch script was killed", ("script_gone",)),
    "leader": CauseKind("round", "the leader died", ("leader_gone",)),
    "slurm_node": CauseKind("attempt", "SLURM lost a node of the allocation"),
    "slurm_oom": CauseKind("attempt", "SLURM ended the job for using too much memory"),
    "lost_requeue": CauseKind("run", "SLURM took the job back and forgot it"),
    "chain": CauseKind("run", "a run that this one waited for did not end as it should"),
    "save": CauseKind("run", "no checkpoint can be written", ("cannot_save", "last_save_failed")),
    "cancelled": CauseKind("run", "the job was cancelled", ("cancelled",)),
    "user": CauseKind("run", "`launcher cancel` ended it", ("user",)),
    "terminated": CauseKind("run", "somebody sent TERM to the job", ("terminated",)),
    "unknown_signal": CauseKind("run", "a signal came, and SLURM does not say why", ("unknown",)),
    "idle": CauseKind("run", "it made no progress for restart.idle_timeout_min", ("idle",)),
    "total_hours": CauseKind("run", "its attempts have used up restart.max_total_hours", ("total_hours",)),
    "gone": CauseKind("run", "its folder was deleted or moved", ("folder_gone",)),
    "no_resume": CauseKind("run", "what it is to go on from cannot be read here", ("no_resume",)),
    "unreadable": CauseKind("run", "its folder does not answer", ("folder_unreadable",)),
    "other": CauseKind("run", "what else its outcome says"),
}  # fmt: skip
"""By kind. Evidence that is in no row ends nothing: it is done, damage that the next round passes over, or a false alarm."""

KIND_OF = {evidence: kind for kind, row in CAUSES.items() for evidence in row.evidence}
"""The kind of each evidence; that of ``worker_failed`` is its cause's."""


class StopWords(NamedTuple):
    """What a signal, or another wish to stop, means."""

    words: str
    """For a line of the history."""
    clause: str = ""
    """For a sentence; ``{name}`` is the signal's."""


MEANINGS = {
    "node_leaves": StopWords("a node is taken away", "a node's own job is ending"),
    "host_leaves": StopWords("sent on this host alone, as when it is shut down"),
    "preempted": StopWords("preempted", "the job was preempted"),
    "preempted_now": StopWords("preempted without grace", "the job was preempted without grace"),
    "script_gone": StopWords("the batch script was killed", "the job's batch script was killed"),
    "cancelled": StopWords("cancelled", "the job was cancelled"),
    "time_limit": StopWords("the time limit is near", "the time limit is near"),
    "user": StopWords("the user ran launcher cancel", "the user ran `launcher cancel --save`"),
    "terminated": StopWords("sent by hand", "{name} was sent to the job, not by SLURM"),
    "nothing": StopWords("SLURM did not send it", "{name} came and SLURM did not send it"),
    "unknown": StopWords("SLURM did not say why", "{name} came and SLURM does not say why"),
    "idle": StopWords("no progress for too long"),
    "total_hours": StopWords("restart.max_total_hours is used up"),
    "leader": StopWords("the leader died"),
}

_MOST_CHARS = 300
_WHAT = re.compile(r"^\s*what\(\):\s*(.+)")
CRASHES = {
    "SIGSEGV": "a segmentation fault",
    "SIGBUS": "a bus error",
    "SIGABRT": "an abort",
    "SIGFPE": "a floating-point error",
    "SIGILL": "an illegal instruction",
    "SIGTRAP": "a trap",
    "SIGSYS": "a forbidden system call",
}
"""The signals that a process brings upon itself."""
_CUDA_CLAUSES = {
    "device-side assert triggered": "failed an assertion in a CUDA kernel",
    "an illegal memory access was encountered": "accessed illegal memory in a CUDA kernel",
}
USAGE_ERROR = 2
"""The exit code of argparse, click and the shells after a wrong argument, which they name last. Before other codes anything may be said."""
_OTHERS = {"SIGKILL": "was killed from outside", "SIGTERM": "was terminated from outside"}


def rank_kind(*, told: str | None, signal: int | None, oom: bool | None, log: Sequence[str]) -> str:
    """Return the kind of a rank's end, by the kernel's word, what the worker told, the signal and its last lines, in this order.

    ``told``: the kind that the worker itself gave; it saw the exception, and neither words nor a crash while it ended outrank it. A process
    that told of none, or ended itself with an exit code, may have left a traceback at the end of its ``log``.
    """
    if oom:
        return "oom"
    name = signal_name(signal) if signal else None
    if name in ("SIGBUS", "SIGKILL") and is_out_of_shm("\n".join(log)):
        return "shm"
    if told is not None and told != "exit":
        return told
    if name is not None and name != "SIGABRT":
        return "signal"
    left = (last_stack(log) if name else None) or parting_traceback(log)
    if left is not None and left.exception and not (left.frames and raises(left.frames[-1].code)):
        kind = kind_of_words(left.exception, left.message)
        if kind is not None:
            return kind
    if name is not None:
        fault = fault_of_gpu("\n".join(log))  # torch's watchdog thread found it first
        if fault is not None:
            return fault[0]
        for line in log:  # what C++ says of an exception that nobody caught
            if (found := _WHAT.search(line)) and (kind := kind_of_words("", found[1])) is not None:
                return kind
        return "timeout" if is_late_collective(log) else "signal"
    return "exception" if left is not None and left.exception and told is None else "exit"


def rank_clause(
    kind: str,
    step: int | None = None,
    *,
    exception: str | None = None,
    message: str | None = None,
    last: str = "",
    signal: int | None = None,
    exit_code: int | None = None,
    limit: str = "",
) -> str:
    """Return what a rank did: the predicate of each sentence about it, by the leader and by the report.

    ``message``: of the exception, or of ``sys.exit``. ``last``: the last line of the log of a process that ended itself without one.
    ``limit``: of memory, with its unit.
    """
    at = f" at step {step:,}" if step is not None else ""
    lines = (message or "").strip().splitlines()
    said = _short(lines[0]) if lines else ""
    why = f": {said}" if said else ""
    match kind:
        case "oom":
            return f"was killed for exceeding the memory limit{f' of {limit}' if limit else ''}{at}"
        case "host_memory":
            return f"could not get the memory it asked for{at}"
        case "cuda_oom":
            return f"ran out of GPU memory{at}"
        case "cuda" | "gpu":
            fault = fault_of_gpu(message or "")
            words = fault[1] if fault else said
            if words in _CUDA_CLAUSES:
                return f"{_CUDA_CLAUSES[words]}{at}"
            what = "lost its GPU" if kind == "gpu" else "failed in a CUDA kernel"
            return f"{what}{at}{f': {words}' if words else ''}"
        case "shm":
            return f"ran out of shared memory (/dev/shm){at}"
        case "disk_full":
            full = "the quota is used up" if "quota" in said.lower() else "the disk is full"
            return f"could not write{at}: {full}"
        case "import":
            module = re.search(r"No module named '([^']+)'", said)
            at = at if step else ""
            return f"could not import {module[1]}{at}" if module else f"could not import what it needs{at}{why}"
        case "timeout":
            return f"waited for the others in a collective{at}, and they did not come"
    if exception and kind not in ("exit", "signal"):
        exception_type = exception.rpartition(".")[2]
        return f"raised {exception_type}{at}{why}"
    if signal is not None:
        by = signal_name(signal)
        if by in CRASHES:
            return f"crashed with {CRASHES[by]} ({by}){at}"
        return f"{_OTHERS[by]} ({by}){at}" if by in _OTHERS else f"was killed by {by}{at}"
    return _exit_clause(exit_code, at, why, _short(last))


def _exit_clause(exit_code: int | None, at: str, why: str, last: str) -> str:
    if exit_code is None:
        return f"ended{at} for an unknown reason"
    if exit_code == 0:
        why = why or " before the work was done"
    elif last and not why:
        why = f": {last}" if exit_code == USAGE_ERROR else f" (last line: {last})"
    return f"exited with code {exit_code}{at}{why}"


def _short(line: str) -> str:
    return line.strip().rstrip(".")[:_MOST_CHARS]
