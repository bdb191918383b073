"""What failed first in a run, with everything its files know about it: the root that `launcher.report.diagnosis.why` puts in words."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from launcher.report.diagnosis.left_out import remedy
from launcher.report.diagnosis.traces import Trace, frames_of, last_stack, last_traceback, tail
from launcher.report.model.history import Event, History, as_dict, as_list, as_number, as_text
from launcher.report.model.summary import RunSummary
from launcher.run.after import broken, may_start, read_predecessors, state_of
from launcher.run.state import agent_logs
from launcher.run.units import signal_name

__all__ = ["Root", "find_root"]

_FAILED = ("worker_failed", "node_lost", "hang", "store_lost")

_OUT_OF_CUDA = re.compile(r"CUDA out of memory|CUDA error: out of memory|OutOfMemoryError")
_OUT_OF_DISK = re.compile(r"No space left on device|Disk quota exceeded|ENOSPC|EDQUOT", re.IGNORECASE)
_OUT_OF_SHM = re.compile(
    r"insufficient shared memory|unable to (mmap|write|allocate).*shared memory|/dev/shm", re.IGNORECASE
)
_LATE = re.compile(
    r"timed? ?out|timeout|Watchdog caught collective operation|Monitored ?Barrier|StragglerError", re.IGNORECASE
)
_COLLECTIVE = re.compile(r"nccl|gloo|collective|barrier|all_?reduce|broadcast|recv|send|store|Straggler", re.IGNORECASE)


@dataclass
class Root:
    """The first failure. ``kind`` is one of the keys of `launcher.report.diagnosis.why.TELLERS`."""

    kind: str
    event: Event = field(default_factory=dict)
    cause: dict[str, Any] = field(default_factory=dict)
    trace: Trace | None = None
    attempt: int | None = None
    round: int | None = None
    rank: int | None = None
    host: str | None = None
    local_rank: int | None = None
    step: int | None = None
    ranks: list[int] = field(default_factory=list)
    """All that failed in this very way, where they were several."""
    everybody: bool = False
    """These are all ranks of the round."""
    victims: list[dict[str, Any]] = field(default_factory=list)
    decision: Event = field(default_factory=dict)
    """What was decided upon it."""
    log: list[str] = field(default_factory=list)
    """The last lines that the failing process wrote."""
    missing: list[int] = field(default_factory=list)
    """Of a collective that timed out: the ranks that did not come."""
    remedy: str = ""
    """What to do about a file that was not copied into the run."""
    same_before: int = 0
    """How often the very same exception had come at the same step before."""


def find_root(h: History, s: RunSummary) -> Root | None:
    """The root cause of the run's end, or of its last interruption while it goes on; None when nothing went wrong."""
    decision = h.last("decision")
    outcome = h.outcome
    if s.state == "cancelled" and h.last("round_started") is None and (chain := _broken_chain(h)):
        return Root("chain", {"reason": chain})
    if outcome is None and s.state in ("failed", "cancelled"):
        return _unannounced(h, s)
    if s.state == "completed":
        return None
    final = {"failed": "fail", "cancelled": "cancel"}.get(s.state)
    if decision is not None and (outcome is None or decision.get("action") == final):
        root = _decided(h, decision)
        if root is not None:
            return root
    event = h.last(*_FAILED)
    if event is not None and (decision is None or h.after(event, decision)) and s.state != "cancelled":
        return _of_event(h, event, {})
    if outcome is not None:
        cause = as_dict(outcome.get("cause"))
        return Root("other", dict(outcome), cause, attempt=outcome.get("attempt"))
    return None


_START = "launcher: start "
"""How the batch script begins each life of the job."""

_FRAME = re.compile(r"srun: |slurmstepd|submitit INFO |The leader (died|stood|failed|could not)|No agent could begin")
"""What stands around the words of an agent in its log."""

_NO_MODULE = re.compile(r"\S*: .*(No module named '[^']+')")
"""``python -m`` could not begin: an interpreter, or an image, without what agents need."""


def _unannounced(h: History, s: RunSummary) -> Root:
    """No outcome was written: SLURM's word, or the leader's death, is all there is beside the agents' logs."""
    kinds = {"CANCELLED": "cancelled", "TIMEOUT": "time_limit", "OUT_OF_MEMORY": "slurm_oom", "NODE_FAIL": "slurm_node",
             "PREEMPTED": "preempted", "BOOT_FAIL": "slurm_node"}  # fmt: skip
    word = next((w for w in kinds if w in s.reason), None)
    if (handed := h.last("submitted", "requeued", "attempt_started")) and handed["type"] == "requeued" and word is None:
        return Root("lost_requeue", {**handed, "reason": s.reason}, attempt=s.attempt, step=s.step)
    return _without_a_word(h, kinds[word] if word else "leader", {"reason": s.reason}, s.attempt, s.step)


def _without_a_word(h: History, kind: str, event: Event, attempt: int | None, step: int | None) -> Root:
    """The leader of an attempt said nothing of its end: what the agents printed last may."""
    started = next((e for e in h.of("attempt_started") if e.get("attempt") == attempt), {})
    logs = ([line for line in tail(path) if line.strip()] for path in _agent_logs(h))
    log = _of_last_start(next((lines for lines in logs if lines), []))
    log = [line for line in log if not _FRAME.match(line)] or log
    root = Root(kind, event, attempt=attempt, step=step, log=log[-40:])
    root.host, root.trace = as_text(started.get("host")) or None, last_traceback(log)
    if kind == "leader" and log and (module := _NO_MODULE.match(log[-1])):
        root.kind, root.host, root.trace = "import", None, Trace("ModuleNotFoundError", module[1])
    return root


def _of_last_start(lines: list[str]) -> list[str]:
    """What the job's present life wrote: a requeued job goes on in the same file."""
    starts = [i for i, line in enumerate(lines) if line.startswith(_START)]
    return lines[starts[-1] + 1 :] if starts else lines


def _broken_chain(h: History) -> str:
    """Why SLURM took a job away that waited for another run; "" when it did not."""
    for one in read_predecessors(h.spec.get("after")):
        state = state_of(one)
        if state is not None and not may_start(one.kind, state):
            return broken(one, state)
    return ""


def _agent_logs(h: History) -> list[Any]:
    """Logs of agents and of the batch script, newest first."""
    own = h.paths.attempt_logs(h.attempt or 0)
    try:
        found = agent_logs(h.paths) + [p for p in own.glob("*.log") if p.is_file()]
    except OSError:
        return []
    return sorted(found, key=_mtime, reverse=True)


def _mtime(path: Any) -> float:
    try:
        return float(path.stat().st_mtime)
    except OSError:
        return 0.0


def _decided(h: History, decision: Event) -> Root | None:
    """The event that a decision was made upon."""
    kind = str(decision.get("evidence"))
    types: dict[str, tuple[str, ...]] = {
        "worker_failed": ("worker_failed",),
        "node_lost": ("node_lost",),
        "hang": ("hang",),
        "store_failed": ("store_lost", "worker_failed"),
    }
    if kind in types:
        event = _before(h, decision, *types[kind]) or _before(h, decision, *_FAILED)
        if event is None and kind == "store_failed":
            return None  # it never started: the decision's own words are all there is
        return _of_event(h, event or {"t": decision["t"], "attempt": decision.get("attempt")}, decision, kind)
    if kind == "leader_gone":
        root = _without_a_word(h, "leader", {}, _whole(decision.get("attempt")), _whole((h.outcome or {}).get("step")))
        root.decision = decision
        root.cause = {"text": as_text(decision.get("said"))}
        if decision.get("action") != "fail":  # the agents' logs are a later attempt's by now
            root.log, root.trace = [], None
        return root
    simple = {
        "nodes_missing": "start", "ports_taken": "start", "preflight_failed": "preflight",
        "preempted": "preempted", "preempted_now": "preempted", "time_limit": "time_limit",
        "cancelled": "cancelled", "user": "user", "unknown": "unknown_signal", "terminated": "terminated", "script_gone": "script_gone",
        "disk_at_risk": "disk_full", "cannot_save": "save", "last_save_failed": "save", "idle": "idle", "total_hours": "total_hours",
        "folder_gone": "gone", "folder_unreadable": "unreadable",
    }.get(kind)  # fmt: skip
    if simple is None:
        return None
    triggers = {"start": ("node_missing",), "preflight": ("preflight",), "disk_full": ("save_failed",),
                "save": ("save_failed",), "gone": (), "unreadable": ()}  # fmt: skip
    event = _before(h, decision, *triggers.get(simple, ("signal", "stop_requested"))) or {}
    root = Root(simple, event, as_dict((h.outcome or {}).get("cause")), decision=decision)
    root.attempt, root.round, root.step = decision.get("attempt"), decision.get("round"), _whole(event.get("step"))
    root.host = as_text(event.get("host")) or None
    return root


def _before(h: History, decision: Event, *types: str) -> Event | None:
    """The newest event of the types that was written before the decision, in the same attempt."""
    found = None
    for e in h.events:
        if e is decision:
            break
        if e["type"] in types and e.get("attempt") == decision.get("attempt"):
            found = e
    return found


def _of_event(h: History, event: Event, decision: Event, kind: str = "") -> Root:
    """The root that one failure event describes."""
    type_ = str(event.get("type") or kind)
    root = Root(
        {"node_lost": "node", "store_lost": "store", "hang": "hang"}.get(type_, "exit"), event, decision=decision
    )
    root.attempt, root.round = event.get("attempt"), event.get("round")
    root.cause = as_dict(event.get("cause"))
    root.rank, root.host, root.step = (
        _whole(event.get("rank")),
        as_text(event.get("host")) or None,
        _whole(event.get("step")),
    )
    root.ranks = [r for r in (_whole(as_dict(r).get("rank")) for r in as_list(event.get("ranks"))) if r is not None]
    root.everybody = len(root.ranks) == len(as_list(_round_of(h, root).get("ranks"))) > 1
    root.victims = _victims(h, event)
    if type_ == "hang":
        _read_hang(h, root)
    elif type_ == "worker_failed":
        _read_worker(h, root)
    root.local_rank = _local_rank(h, root)
    return root


def _victims(h: History, event: Event) -> list[dict[str, Any]]:
    for e in h.of("victims"):
        same = e.get("attempt") == event.get("attempt") and e.get("round") == event.get("round")
        if same and h.after(e, event):
            return [v for v in as_list(e.get("ranks")) if isinstance(v, dict)]
    return []


def _round_of(h: History, root: Root) -> Event:
    for e in h.of("round_started"):
        if e.get("attempt") == root.attempt and e.get("round") == root.round:
            return e
    return {}


def _local_rank(h: History, root: Root) -> int | None:
    for r in as_list(_round_of(h, root).get("ranks")):
        if isinstance(r, dict) and r.get("rank") == root.rank and root.rank is not None:
            root.host = root.host or as_text(r.get("host")) or None
            return _whole(r.get("local_rank"))
    return None


def _whole(value: object) -> int | None:
    number = as_number(value)
    return None if number is None else int(number)


def _rank_log(h: History, root: Root) -> list[str]:
    if root.attempt is None or root.round is None or root.rank is None:
        return []
    return tail(h.paths.rank_log(root.attempt, root.round, root.rank))


_WAITS = re.compile(r"torch/distributed/|nn/parallel/distributed\.py|autograd/graph\.py")
"""Files of a stack that waits for other ranks: in a collective, or in a backward pass that reduces gradients."""
MOST_STACKS = 128


def _read_hang(h: History, root: Root) -> None:
    """Who lagged, as the leader saw it or as the dumped stacks tell, and its stack."""
    slow = [r for r in as_list(root.event.get("laggards")) if isinstance(r, dict)]
    rank = _whole(slow[0].get("rank")) if slow else _odd_one(h, root)
    if rank is None:
        return
    root.rank = rank
    if slow:
        root.host, root.step = as_text(slow[0].get("host")) or None, _whole(slow[0].get("step"))
    root.log = _rank_log(h, root)
    root.trace = last_stack(root.log)


def _odd_one(h: History, root: Root) -> int | None:
    """The rank that the others wait for: alone without a stack (it was frozen), or not waiting in a collective."""
    ranks = [
        r for r in (_whole(as_dict(r).get("rank")) for r in as_list(_round_of(h, root).get("ranks"))) if r is not None
    ]
    silent, busy = [], []
    waiting: dict[tuple[str, int | None], list[int]] = {}
    for rank in ranks[:MOST_STACKS]:
        stack = last_stack(tail(h.paths.rank_log(root.attempt or 0, root.round or 0, rank)))
        if stack is None:
            silent.append(rank)
        elif not any(_WAITS.search(frame.file) for frame in stack.frames):
            busy.append(rank)
        else:
            waiting.setdefault(_called_from(stack), []).append(rank)
    for found in (silent, busy):
        if 0 < len(found) <= len(ranks) / 2:
            return found[0]
    # All wait, but not for the same: most ranks are where they belong.
    few = sorted(waiting.values(), key=len)[:-1]
    return few[0][0] if few and len(few[0]) < len(ranks) / 2 else None


def _called_from(stack: Trace) -> tuple[str, int | None]:
    """The line outside torch from which a collective was entered."""
    frame = next((f for f in reversed(stack.frames) if "/torch/" not in f.file), stack.frames[-1])
    return frame.file, frame.line


def _read_worker(h: History, root: Root) -> None:
    """WaitKind and trace of a worker's failure: as it told them itself, else as its last lines do."""
    cause = root.cause
    root.log = [str(line) for line in as_list(cause.get("last_lines"))] or _rank_log(h, root)
    if cause.get("exception"):
        root.trace = Trace(
            str(cause["exception"]), as_text(cause.get("message")), frames_of(as_list(cause.get("frames")))
        )
    elif cause.get("signal") is not None:
        root.trace = last_stack(root.log) or last_traceback(root.log)
    else:
        root.trace = last_traceback(root.log)
    root.kind = _kind(cause, root.trace, "\n".join(root.log[-40:]))
    if root.kind == "timeout":
        root.missing = _missing(h, root)
    root.same_before, root.remedy = _same_before(h, root), remedy(h, root.trace)


def _kind(cause: dict[str, Any], trace: Trace | None, log: str) -> str:
    """What sort of failure a worker's was; the trace says more than an exit code, and the kernel more than a signal."""
    given = as_text(cause.get("kind"))
    if cause.get("oom"):
        return "oom"
    signal = signal_of(cause)
    if signal in ("SIGBUS", "SIGKILL") and _OUT_OF_SHM.search(log):
        return "shm"
    if signal is not None and signal != "SIGABRT":
        return "signal"
    said = f"{trace.exception}: {trace.message}" if trace else ""
    tests: tuple[tuple[str, Callable[[], object]], ...] = (
        ("cuda_oom", lambda: _OUT_OF_CUDA.search(said)),
        ("import", lambda: said.startswith(("ImportError", "ModuleNotFoundError"))),
        ("shm", lambda: _OUT_OF_SHM.search(said)),
        ("disk_full", lambda: _OUT_OF_DISK.search(said)),
        ("timeout", lambda: said and _LATE.search(said) and _COLLECTIVE.search(said)),
        ("timeout", lambda: signal == "SIGABRT" and _LATE.search(log) and _COLLECTIVE.search(log)),
        ("host_memory", lambda: trace and trace.exception.endswith("MemoryError")),
    )
    found = next((name for name, test in tests if test()), None)
    if found is not None:
        return found
    if given in ("cuda_oom", "import", "disk_full", "timeout", "start"):
        return given
    if given == "oom":
        return "host_memory"
    if trace is not None and trace.exception and signal is None:
        return "exception"
    return "signal" if signal is not None else "exit"


def signal_of(cause: dict[str, Any]) -> str | None:
    """``SIGKILL``, whether the cause holds 9, "KILL" or "SIGKILL"; None when there was no signal."""
    return signal_name(cause["signal"]) if cause.get("signal") else None


def _missing(h: History, root: Root) -> list[int]:
    """The ranks that kept the others waiting: they said nothing of a time-out themselves."""
    ranks = {
        r["rank"]
        for r in as_list(_round_of(h, root).get("ranks"))
        if isinstance(r, dict) and _whole(r.get("rank")) is not None
    }
    named = re.search(
        r"[Rr]anks? (?:\[)?((?:\d+(?:, ?)?)+)(?:\])? (?:failed to pass|did not|is missing|never)", _text(root.cause)
    )
    if named:
        return [int(n) for n in re.findall(r"\d+", named[1])]
    late = {root.rank, *root.ranks} | {v.get("rank") for v in root.victims}
    missing = sorted(r for r in ranks - late if isinstance(r, int))
    return missing if 0 < len(missing) <= max(1, len(ranks) // 2) else []


def _text(cause: dict[str, Any]) -> str:
    return f"{as_text(cause.get('message'))}\n" + "\n".join(str(line) for line in as_list(cause.get("last_lines")))


def _same_before(h: History, root: Root) -> int:
    """How often this exception had come at this step, at this place, before."""
    if not root.cause.get("exception"):
        return 0

    def key(e: Event) -> tuple[object, ...]:
        cause = as_dict(e.get("cause"))
        places = [(f.get("file"), f.get("line")) for f in as_list(cause.get("frames")) if isinstance(f, dict)]
        return (cause.get("exception"), e.get("step"), *places)

    mine = key(root.event)
    return sum(1 for e in h.of("worker_failed") if h.after(root.event, e) and key(e) == mine)
