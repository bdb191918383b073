"""What failed first in a run, with everything its files know about it: the root that `launcher.report.diagnosis.why` puts in words."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any

from launcher.report.diagnosis.left_out import remedy
from launcher.report.diagnosis.stacks import Stacks
from launcher.report.diagnosis.traces import frames_of, tail, user_frame
from launcher.report.model.history import History, as_dict, as_number, as_text, as_whole
from launcher.report.model.ledger import interruptions
from launcher.report.model.summary import RunSummary
from launcher.report.model.verdict import UNKNOWN
from launcher.run import events as ev
from launcher.run.after import broken, may_start, read_predecessors, state_of
from launcher.run.causes import KIND_OF, rank_kind
from launcher.run.error_words import kind_of_words
from launcher.run.event_parts import Cause, PlacedRank, Victim
from launcher.run.events import Event, EventKind
from launcher.run.state import agent_logs, is_requested
from launcher.run.tracebacks import (
    Trace,
    last_stack,
    last_traceback,
    parting_traceback,
    thread_tracebacks,
    users_lines,
)
from launcher.run.units import signal_name


@dataclass
class Root:
    """The first failure. ``kind`` is one of the keys of `launcher.run.causes.CAUSES`."""

    kind: str
    event: Event | None = None
    t: float | None = None
    """When it was told."""
    reason: str = ""
    """What somebody else has said of it: SLURM, the outcome."""
    cause: Cause = field(default_factory=lambda: _cause({}))
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
    victims: list[Victim] = field(default_factory=list)
    decision: ev.Decided | None = None
    """What was decided upon it."""
    log: list[str] = field(default_factory=list)
    """The last lines that the failing process wrote."""
    threads: list[str] = field(default_factory=list)
    """Threads of the process that had ended by an exception: a line each."""
    places: list[tuple[list[int], Trace, str]] = field(default_factory=list)
    """Of a hang in which no rank stands out: ranks, their stack, and the collective or function in which they stood."""
    looked_at: int | None = None
    """How many ranks' stacks that rests on, where it is not all."""
    missing: list[int] = field(default_factory=list)
    """Of a collective that timed out: the ranks that did not come."""
    is_known: bool = False
    """torch has named the missing ranks; otherwise nothing was heard of them."""
    remedy: str = ""
    """What to do about a file that was not copied into the run."""

    def __post_init__(self) -> None:
        self.t = self.event.t if self.t is None and self.event is not None else self.t

    def of(self, kind: type[EventKind]) -> EventKind:
        """Return the event where it is of this kind, else one that tells nothing."""
        empty: EventKind = self.event if isinstance(self.event, kind) else kind.from_wire({}, [])
        return empty

    def is_decided_upon(self, evidence: str) -> bool:
        """Return whether the decision was made upon this kind of evidence."""
        return self.decision is not None and self.decision.evidence == evidence


def _cause(values: object) -> Cause:
    made: Cause = Cause.from_wire(as_dict(values), [])
    return made


def find_root(h: History, s: RunSummary) -> Root | None:
    """The root cause of the run's end, or of its last interruption while it goes on or has completed; None when nothing went wrong."""
    decision, event, outcome = h.last(ev.Decided), h.last(ev.Fault), h.outcome
    if s.reason.startswith(UNKNOWN):
        return None if s.active else Root("other", reason=s.reason)
    if s.state == "completed":
        if not interruptions(h):
            return None
        decision, outcome = next((e for e in reversed([*h.of(ev.Decided)]) if e.action != "complete"), None), None
    elif outcome is not None:  # it is the outcome of the last submission, whatever ended those before
        decision, event = _of_last_submission(h, decision), _of_last_submission(h, event)
    if s.state == "cancelled" and h.last(ev.RoundStarted) is None and (chain := _broken_chain(h)):
        return Root("chain", reason=chain)
    if outcome is None and s.state in ("failed", "cancelled"):
        return _unannounced(h, s)
    final = {"failed": "fail", "cancelled": "cancel"}.get(s.state)
    if decision is not None and (outcome is None or decision.action == final):
        root = _decided(h, decision)
        if root is not None:
            return root
    if event is not None and (decision is None or h.after(event, decision)) and s.state != "cancelled":
        return _of_event(h, event, None)
    if outcome is not None:
        attempt, reason = as_whole(outcome.get("attempt")), as_text(outcome.get("reason"))
        return Root(
            "other", t=as_number(outcome.get("t")), reason=reason, cause=_cause(outcome.get("cause")), attempt=attempt
        )
    return None


def _of_last_submission(h: History, event: EventKind | None) -> EventKind | None:
    """Return the event if the run has not been submitted since."""
    submitted = h.last(ev.RunSubmitted)
    return None if event is None or (submitted is not None and h.after(submitted, event)) else event


_MOST_THREADS = 2
_START = "launcher: start "
"""How the batch script begins each life of the job."""

_FRAME = re.compile(r"srun: |slurmstepd|submitit INFO |The leader (died|stood|failed|could not)|No agent could begin")
"""What stands around the words of an agent in its log."""

_NO_MODULE = re.compile(r"\S*: .*(No module named '[^']+')")
"""``python -m`` could not begin: an interpreter, or an image, without what agents need."""


def _unannounced(h: History, s: RunSummary) -> Root:
    """No outcome was written: what the leader had decided, else SLURM's word, or the leader's death beside the agents' logs."""
    decision = _of_last_submission(h, h.last(ev.Decided))
    final = decision is not None and decision.action in ("fail", "cancel") and decision.attempt == h.attempt
    if decision is not None and final and (root := _decided(h, decision)) is not None:
        return root
    kinds = {"CANCELLED": "cancelled", "TIMEOUT": "time_limit", "OUT_OF_MEMORY": "slurm_oom", "NODE_FAIL": "slurm_node",
             "PREEMPTED": "preempted", "BOOT_FAIL": "slurm_node"}  # fmt: skip
    kind = kinds.get(s.slurm_state or "")
    if kind is None and isinstance(handed := h.last(ev.JobNamed), ev.Requeued):
        return Root("lost_requeue", handed, reason=s.reason, attempt=s.attempt, step=s.step)
    return _leader_silent(h, kind or "leader", s.reason, s.attempt, s.step)


def _leader_silent(h: History, kind: str, reason: str, attempt: int | None, step: int | None) -> Root:
    """The leader of an attempt said nothing of its end: what the agents printed last may."""
    host = next((e.host for e in h.of(ev.AttemptStarted) if e.attempt == attempt), None)
    logs = ([line for line in tail(path) if line.strip()] for path in _agent_logs(h))
    log = _of_last_start(next((lines for lines in logs if lines), []))
    log = [line for line in log if not _FRAME.match(line)] or log
    root = Root(kind, reason=reason, attempt=attempt, step=step, log=log[-40:], host=host, trace=last_traceback(log))
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


def _decided(h: History, decision: ev.Decided) -> Root | None:
    """The event that a decision was made upon."""
    kind = decision.evidence or ""
    types: dict[str, tuple[type[ev.Fault], ...]] = {
        "worker_failed": (ev.WorkerFailed,),
        "node_lost": (ev.NodeLost,),
        "hang": (ev.Hang,),
        "store_failed": (ev.StoreLost, ev.WorkerFailed),
    }
    if kind in types:
        event = _before(h, decision, *types[kind])
        event = event or _before(h, decision, ev.Fault)
        if event is None and kind == "store_failed":
            return None  # it never started: the decision's own words are all there is
        return _of_event(h, event, decision)
    if kind == "leader_gone" and decision.action == "cancel":
        return Root("cancelled", decision, attempt=decision.attempt)
    if kind == "leader_gone":
        root = _leader_silent(h, "leader", "", decision.attempt, as_whole((h.outcome or {}).get("step")))
        root.decision, root.cause = decision, _cause({"text": decision.said})
        if decision.action != "fail":  # the agents' logs, and the outcome, are a later attempt's by now
            root.log, root.trace, root.step = [], None, None
        return root
    simple = KIND_OF.get(kind)
    if simple == "cancelled" and is_requested(h.paths):
        simple = "user"  # `launcher cancel` leaves its request beside the scancel
    if simple is None:
        return None
    triggers: dict[str, tuple[type[Event], ...]] = {
        "start": (ev.NodeMissing,), "preflight": (ev.PreflightDone,), "disk_full": (ev.SaveFailed,),
        "save": (ev.SaveFailed,), "gone": (), "unreadable": (), "no_resume": (),
    }  # fmt: skip
    trigger = _before(h, decision, *triggers.get(simple, (ev.SignalReceived, ev.StopRequested)))
    root = Root(simple, trigger, cause=_cause((h.outcome or {}).get("cause")), decision=decision)
    root.attempt, root.round = decision.attempt, decision.round
    root.step, root.host = root.of(ev.SaveFailed).step, root.of(ev.SignalReceived).host
    return root


def _before(h: History, decision: Event, *types: type[EventKind]) -> EventKind | None:
    """The newest event of the types that was written before the decision, in the same attempt."""
    found = None
    for e in h.events:
        if e is decision:
            break
        if isinstance(e, types) and e.attempt == decision.attempt:
            found = e
    return found


def _of_event(h: History, event: ev.Fault | None, decision: ev.Decided | None) -> Root:
    """The root that one failure event describes; None: only its decision is known."""
    root = Root("exit", event, decision=decision)
    if (told := event or decision) is not None:
        root.t, root.attempt, root.round = told.t, told.attempt, None if event is None else event.round
    match event:
        case ev.NodeLost() | ev.StoreLost():
            root.kind, root.host = "node" if isinstance(event, ev.NodeLost) else "store", event.host
        case ev.LeaderRevived():
            root.kind, root.host = "leader", event.host
        case ev.Hang():
            root.kind = "hang"
            _read_hang(h, root, event)
        case ev.WorkerFailed():
            root.cause = event.cause or root.cause
            root.rank, root.host, root.step = event.rank, event.host, event.step
            root.ranks = [r.rank for r in event.ranks if r.rank is not None]
            root.everybody = len(root.ranks) == len(_round_of(h, root)) > 1
            root.victims = _victims(h, event)
            _read_worker(h, root)
    root.local_rank = _local_rank(h, root)
    return root


def _victims(h: History, event: Event) -> list[Victim]:
    for e in h.of(ev.Victims):
        if (e.attempt, e.round) == (event.attempt, event.round) and h.after(e, event):
            return e.ranks
    return []


def _round_of(h: History, root: Root) -> list[PlacedRank]:
    for e in h.of(ev.RoundStarted):
        if (e.attempt, e.round) == (root.attempt, root.round):
            return e.ranks
    return []


def _local_rank(h: History, root: Root) -> int | None:
    for r in _round_of(h, root):
        if r.rank == root.rank and root.rank is not None:
            root.host = root.host or r.host
            return r.local_rank
    return None


def users_log(h: History, root: Root) -> list[str]:
    """The end of a rank's log as far as it is the user's; a cause holds the last lines alone."""
    if root.attempt is None or root.round is None or root.rank is None:
        return []
    return users_lines(tail(h.paths.rank_log(root.attempt, root.round, root.rank)))


def _read_hang(h: History, root: Root, event: ev.Hang) -> None:
    """Who lagged, as the leader saw it or as the dumped stacks tell, and its stack."""
    slow = event.laggards[0] if event.laggards else None
    ranks = [r.rank for r in _round_of(h, root) if r.rank is not None]
    if slow is not None:
        root.rank = slow.rank
    else:
        stacks = Stacks(h.paths, root.attempt or 0, root.round or 0, ranks)
        root.rank = stacks.odd_one()
        root.places = stacks.places() if root.rank is None else []
        root.looked_at = len(stacks.ranks) if len(stacks.ranks) < len(ranks) else None
    if root.rank is None:
        return
    if slow is not None:
        root.host, root.step = slow.host, slow.step
    root.log = users_log(h, root)
    root.trace = last_stack(root.log)
    root.threads = _threads(root.log)


def _threads(log: list[str]) -> list[str]:
    """``thread Thread-3 ended before: ValueError: shard 9 is lost (data.py:12)``."""
    found = []
    for name, trace in thread_tracebacks(log)[-_MOST_THREADS:]:
        frame = user_frame(trace.frames)
        place = f" ({os.path.basename(frame.file or '')}:{frame.line} in {frame.function})" if frame is not None else ""
        message = trace.message.partition("\n")[0]
        found.append(f"thread {name} had ended: {trace.exception}: {message}{place}")
    return found


def _read_worker(h: History, root: Root) -> None:
    """Kind and trace of a worker's failure: as it told them itself, else as its last lines do."""
    cause = root.cause
    root.log = cause.last_lines or users_log(h, root)
    if cause.exception:
        root.trace = Trace(cause.exception, cause.message or "", frames_of(cause.frames))
    elif cause.signal is not None:
        root.trace = last_stack(root.log) or last_traceback(root.log)
    else:
        root.trace = parting_traceback(root.log)
    root.threads = _threads(users_log(h, root))
    written = as_dict(root.event.raw.get("cause")) if root.event is not None else {}
    root.kind = (cause.kind or "exit") if "caused_by" in written else _kind_of_older(cause, root.log)
    if root.kind == "timeout":
        root.missing, root.is_known = _missing(h, root)
    root.remedy = remedy(h, root.trace)


def _kind_of_older(cause: Cause, log: list[str]) -> str:
    """The kind of a CAUSE without ``caused_by``: versions that wrote none told fewer kinds apart, and had not read the log."""
    told = kind_of_words(cause.exception, cause.message or "") or cause.kind if cause.exception else None
    return rank_kind(told=told, signal=cause.signal, oom=bool(cause.oom), log=log)


def signal_of(cause: Cause) -> str | None:
    """``SIGKILL``; None when there was no signal."""
    return signal_name(cause.signal) if cause.signal else None


def _missing(h: History, root: Root) -> tuple[list[int], bool]:
    """The ranks that kept the others waiting, and whether torch names them; else they said nothing of a time-out themselves."""
    ranks = {r.rank for r in _round_of(h, root) if r.rank is not None}
    named = re.search(
        r"[Rr]anks? (?:\[)?((?:\d+(?:, ?)?)+)(?:\])? (?:failed to pass|did not|is missing|never)", _text(root.cause)
    )
    if named:
        return [int(n) for n in re.findall(r"\d+", named[1])], True
    missing = sorted(ranks - {root.rank, *root.ranks, *(v.rank for v in root.victims)})
    return (missing if 0 < len(missing) <= max(1, len(ranks) // 2) else []), False


def _text(cause: Cause) -> str:
    return "\n".join([cause.message or "", *cause.last_lines])
