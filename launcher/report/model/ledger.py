"""Account for a run's time and hardware, and advise from it: goodput, GPU-hours, when to save; pure."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from launcher.frozen import field_values, frozen
from launcher.report import formats
from launcher.report.model.cost import cost_of
from launcher.report.model.history import History, as_dict, as_number
from launcher.report.model.timeline import KINDS, Segment, timeline
from launcher.run import events as ev
from launcher.run.events import Event
from launcher.run.intervals import young_daly_s

COUNTED = tuple(k for k in KINDS if k != "away")


@frozen
class Interruption:
    """One thing that stopped training before its end."""

    t: float
    cause: str
    """crash, node, hang, store, leader, preempted, time_limit, cancelled, user, terminated or unknown."""
    attempt: int | None
    lost_steps: int | None


@frozen(kw_only=True)
class Ledger:
    """Seconds by kind over all attempts, and what they cost."""

    seconds: dict[str, float]
    """By kind: useful, saving, lost, recovery, start-up, queued, stopped, away (the last counts for nothing)."""
    segments: list[Segment]
    """The pieces themselves, in order; not in JSON."""
    gpu_hours: float
    """Of every allocated node, spares included."""
    spare_gpu_hours: float
    """Of it: of nodes that stood by."""
    node_hours: float
    """Nodes times hours, spares included."""
    cpu_hours: float
    """CPUs that ranks had, times hours, spares included."""
    lost_steps: int
    """Optimizer steps that had to be done again."""
    interruptions: list[Interruption]
    """[{t, cause, attempt, lost_steps}]: what stopped training before its end."""

    @property
    def total_s(self) -> float:
        """Everything but ``away``."""
        return sum(self.seconds[k] for k in COUNTED)

    @property
    def goodput(self) -> float | None:
        """Share of all counted time that was useful; None before there is any."""
        return self.seconds["useful"] / self.total_s if self.total_s > 0 else None

    def as_json(self) -> dict[str, Any]:
        """For ``--json``: without the segments."""
        values = field_values(self) | {"interruptions": [field_values(one) for one in self.interruptions]}
        del values["segments"]
        return {**values, "total_s": self.total_s, "goodput": self.goodput}


def ledger(history: History, until: float) -> Ledger:
    """Account for the run's time up to ``until``: its end, or now."""
    segments = timeline(history, until)
    seconds = {kind: sum(s.seconds for s in segments if s.kind == kind) for kind in KINDS}
    cost = cost_of(history, segments)
    stops = interruptions(history)
    return Ledger(
        seconds=seconds,
        segments=segments,
        gpu_hours=cost.gpu,
        spare_gpu_hours=cost.spare_gpu,
        node_hours=cost.node,
        cpu_hours=cost.cpu,
        lost_steps=sum(i.lost_steps or 0 for i in stops),
        interruptions=stops,
    )


def shares(book: Ledger) -> dict[str, int]:
    """Whole per cent by kind that add up to 100 (largest remainders); empty before there is any time."""
    total = book.total_s
    if total <= 0:
        return {}
    exact = {k: 100 * book.seconds[k] / total for k in COUNTED}
    whole = {k: math.floor(v) for k, v in exact.items()}
    for kind in sorted(exact, key=lambda k: whole[k] - exact[k])[: 100 - sum(whole.values())]:
        whole[kind] += 1
    return whole


def goodput_in_words(book: Ledger) -> str:
    """``91 % useful, 4 queued, 3 start-up, 1 saving, 1 lost``."""
    parts = [(kind, share) for kind, share in shares(book).items() if share > 0]
    parts.sort(key=lambda part: (part[0] != "useful", -part[1]))
    return ", ".join(f"{share} {'' if i else '% '}{kind}" for i, (kind, share) in enumerate(parts))


def cost_in_words(book: Ledger) -> str:
    """``192 GPU-h, 24 of them on spare nodes``; CPU-hours where there are no GPUs; empty before there is any."""
    if book.gpu_hours:
        spare = f", {formats.hours(book.spare_gpu_hours)} of them on spare nodes" if book.spare_gpu_hours else ""
        return f"{formats.hours(book.gpu_hours)} GPU-h{spare}"
    return f"{formats.hours(book.cpu_hours)} CPU-h" if book.cpu_hours else ""


_CAUSES: dict[type[Event], str] = {
    ev.WorkerFailed: "crash", ev.NodeLost: "node", ev.StoreLost: "store", ev.Hang: "hang",
    ev.LeaderRevived: "leader",
}  # fmt: skip
_UNPLANNED = (*_CAUSES.values(), "leader", "unknown")


def interruptions(history: History) -> list[Interruption]:
    """What stopped training, oldest first: one per round at most, its first cause."""
    out: list[Interruption] = []
    told = (
        0  # so many came before the newest first step; of those after it the first has lost its steps, the others none
    )
    cause: tuple[float, str, int | None] | None = None
    step: int | None = None
    base: int | None = None
    attempt: int | None = None
    alive_t = 0.0
    closed = {e.attempt for e in history.of(ev.AttemptEnded, ev.Stopped, ev.Ended)}
    for e in history.events:
        if cause is None and (name := _cause(e)):
            cause = (e.t, name, e.attempt)
        elif isinstance(e, ev.AttemptStarted) and cause is None and attempt is not None and attempt not in closed:
            cause = (alive_t, "leader", attempt)  # it died, and nobody had the time to say so
        elif isinstance(e, ev.Stopped) and cause is not None:
            out.append(Interruption(*cause, e.lost_steps))
            cause, step = None, None
        elif isinstance(e, (ev.RoundStarted, ev.FirstStep)) and cause is not None:
            out.append(Interruption(*cause, None))
            cause = None
        if isinstance(e, ev.RoundStarted):
            base = e.resume_step or 0  # a first report tells a later step where steps are short
        elif isinstance(e, ev.FirstStep):
            lost = None if step is None or base is None else max(0, step - base)
            for n in range(told, len(out)):
                if out[n].lost_steps is None and out[n].cause != "leader":  # it could not write its last step
                    out[n] = dataclasses.replace(out[n], lost_steps=lost if n == told else 0)
            told, step = len(out), None
        if isinstance(e, _TELL_STEPS) and e.step is not None:
            step = e.step if step is None else max(step, e.step)
        if e.attempt is not None:
            attempt, alive_t = e.attempt, e.t
    if cause is not None:
        out.append(Interruption(*cause, None))
    return out


def _cause(e: Event) -> str | None:
    """What this event says of an interruption, if anything."""
    if isinstance(e, ev.StopRequested):
        return e.cause or "unknown"
    return "leader" if isinstance(e, ev.Decided) and e.evidence == "leader_gone" else _CAUSES.get(type(e))


_TELL_STEPS = (ev.FirstStep, ev.SaveStarted, ev.Saved, ev.WorkerFailed)


@frozen(kw_only=True)
class Advice:
    """What the run's own history recommends; None where it tells too little."""

    save_cost_s: float | None
    """How long a checkpoint pauses training: the median."""
    mttf_s: float | None
    """Training time per unplanned interruption; with none seen, all training time so far (a lower bound)."""
    failures: int
    """Unplanned interruptions."""
    interval_s: float | None
    """Recommended time between checkpoints (Young/Daly, within the job's bounds)."""
    lead_s: float | None
    """Recommended signal lead: twice the longest stop seen, or twice the longest save and ten steps."""


def advise(history: History, book: Ledger) -> Advice:
    """Recommend a checkpoint interval and how long before the time limit SLURM should signal."""
    saved = list(history.of(ev.Saved))
    costs = [e.blocked_s for e in saved if e.blocked_s and e.reason not in ("stop", "end")]
    cost = formats.median(costs)
    trained = book.seconds["useful"] + book.seconds["lost"] + book.seconds["saving"]
    hard = [i for i in book.interruptions if i.cause in _UNPLANNED or (i.lost_steps or 0) > 0]
    mttf = trained / max(len(hard), 1) if trained > 0 else None
    interval = None
    if cost and mttf:
        bounds = as_dict(history.spec.get("checkpoint"))
        least = 60 * (as_number(bounds.get("min_interval_min")) or 1.0)
        most = 60 * (as_number(bounds.get("max_interval_min")) or 30.0)
        interval = min(max(young_daly_s(cost, mttf), least), most)
    return Advice(
        save_cost_s=cost or None, mttf_s=mttf, failures=len(hard), interval_s=interval, lead_s=_lead(history, saved)
    )


def advice_in_words(a: Advice) -> str:
    """``save every 12 min; saving needs 20 s of warning``."""
    parts = [f"save every {formats.duration(a.interval_s)}"] if a.interval_s is not None else []
    parts += [f"saving needs {formats.duration(a.lead_s)} of warning"] if a.lead_s is not None else []
    return "; ".join(parts)


def _lead(history: History, saved: list[ev.Saved]) -> float | None:
    if not saved:
        return None  # nothing is saved: a stop needs no warning
    stops: list[float] = []
    asked: float | None = None
    for e in history.of(ev.StopRequested, ev.Stopped):
        if isinstance(e, ev.StopRequested):
            asked = e.t
        elif asked is not None:
            stops.append(e.t - asked)
            asked = None
    longest = max(stops or [e.seconds for e in saved if e.seconds], default=None)
    return None if longest is None else math.ceil(max(10.0, 2 * longest))
