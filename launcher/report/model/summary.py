"""One run in one record: its state, where it is, how fast; from its files and, where asked, SLURM's answer."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import field
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any

from launcher.frozen import frozen
from launcher.report import formats
from launcher.report.model.hearing import heard, run_now
from launcher.report.model.history import History, as_dict, as_list, as_number, as_text, as_whole, own_time
from launcher.report.model.problems import faults
from launcher.report.model.verdict import State, verdict
from launcher.run import events as ev
from launcher.run.units import short_list

if TYPE_CHECKING:
    from launcher.slurm.jobs import JobView

STANDS_OUT = 0.1
"""A rank is called slow when it needs longer than the others by this share of a step; jitter is less."""
_JOINED_S = 5.0
"""Within it a node that is well has joined: Python's start and a connection."""


@frozen(kw_only=True)
class RunSummary:
    """One run now. Times are seconds since the epoch, durations seconds; None is unknown."""

    run: str
    """Its id."""
    name: str
    """The job's name."""
    dir: str
    """Its directory."""
    state: State
    """pending, running, completed, failed or cancelled."""
    reason: str = ""
    """Why it is pending, failed or cancelled: one sentence or SLURM's word."""
    slurm_state: str | None = None
    """SLURM's word for the job of a run that ended without an outcome."""
    backend: str = "slurm"
    """slurm or local."""
    job_id: str | None = None
    """SLURM's number of the newest attempt's job."""
    attempt: int | None = None
    """The newest attempt, from 0; null before the first began."""
    round: int | None = None
    """The newest round of that attempt, from 0."""
    phase: str = ""
    """Of a running one: waiting (for nodes), preflight, starting, training, evaluating, stopping, holding (of a hold) or suspended (by
    SLURM)."""
    step: int | None = None
    """Optimizer steps done."""
    total_steps: int | None = None
    """Of how many, where that is known."""
    epoch: float | None = None
    """The epoch under way, from 0."""
    epochs: float | None = None
    """Of how many."""
    world_size: int | None = None
    """Ranks."""
    nodes: list[str] = field(default_factory=list)
    """Host names in use."""
    spares: list[str] = field(default_factory=list)
    """Host names standing by."""
    missing: list[dict[str, Any]] = field(default_factory=list)
    """Whom the leader waits for: [{host, ranks}]."""
    waited_s: float | None = None
    """How long it has waited for them."""
    submitted: float | None = None
    """When it was first submitted."""
    queued: float | None = None
    """When it was put into the queue last: submitted, or handed to its next attempt."""
    started: float | None = None
    """When the first attempt began."""
    attempt_started: float | None = None
    """When the newest attempt began."""
    ended: float | None = None
    """When it ended; null while it has not."""
    partition: str = ""
    """Of a pending run: where it waits."""
    starts: float | None = None
    """Of a pending run: when SLURM expects to start it."""
    rate: float | None = None
    """Steps per second, over the last minute."""
    eta_s: float | None = None
    """Seconds of training that are left at this rate."""
    saved_step: int | None = None
    """Step of the newest committed checkpoint."""
    saved_t: float | None = None
    """When that was saved."""
    saved_path: str = ""
    """The newest checkpoint, below the run's directory."""
    save_failures: int = 0
    """Saves that have failed since the newest checkpoint, in this attempt."""
    save_error: str = ""
    """Why the latest of them failed."""
    warnings: list[str] = field(default_factory=list)
    """What the launcher has warned of in this attempt, each sentence once, the first ones first."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """The newest value of each metric; what is not finite is "nan", "inf" or "-inf"."""
    ranks: list[dict[str, Any]] = field(default_factory=list)
    """[{rank, host, node, local_rank, pid, step, phase, step_time_s, own_s, heartbeat_t, ended_t, cpu_percent, rss_bytes, gpu_percent,
    gpu_mem_bytes, gpu_power_w, gpu_memory_errors}]; own_s is a step's time without waiting for other ranks."""
    restarts: int = 0
    """Rounds beyond the first of each attempt."""
    left_here_s: float | None = None
    """Of the time limit of this attempt."""
    left_in_all_s: float | None = None
    """Of ``restart.max_total_hours``."""
    heard: float | None = None
    """When the leader last wrote."""
    silent: bool = False
    """Running by all that is known, but the leader has not written for a minute."""
    sweep: str | None = None
    """The sweep it is a point of."""
    hold: str | None = None
    """Of a rerun: the hold in whose allocation it trains. Of a hold: itself."""
    rerun: str | None = None
    """Of a hold: the run that trains in it now."""
    waits_for: list[str] = field(default_factory=list)
    """Without SLURM: the runs in `after` for which its leader waits now."""
    overrides: list[str] = field(default_factory=list)
    """What that point sets: ["params.lr=0.1"]."""
    exit_code: int | None = None
    """Of an ended run: 0, or that of its kind of end."""
    file_faults: list[str] = field(default_factory=list)
    """What of its files could not be read, is missing or was written by another version: a sentence for each."""

    @property
    def active(self) -> bool:
        """Pending or running."""
        return self.state in ("pending", "running")

    @property
    def late(self) -> list[dict[str, Any]]:
        """Whom of the missing the leader waits for longer than a node takes to join: of a run that has just begun, all are missing."""
        return [] if self.waited_s is not None and self.waited_s < _JOINED_S else self.missing

    @property
    def doing(self) -> str:
        """What a running run does: its phase as a participle."""
        if self.waits_for:
            return f"waiting for {short_list(self.waits_for)}"
        return {
            "waiting": "waiting for its nodes",
            "preflight": "checking its nodes",
            "ended": "ending",
            "holding": f"held; {self.rerun} runs in it"
            if self.rerun
            else f"held; launcher rerun {self.run} runs code in it",
            "": "running",
        }.get(self.phase, self.phase)

    @property
    def slowest(self) -> tuple[int, float] | None:
        """The rank that the others wait for, and by what share it exceeds their median; None where none stands out."""
        known = [r for r in self.ranks if "rank" in r and as_number(r.get("step_time_s"))]
        times = {r["rank"]: t for r in known if (t := own_time(r))}
        if len(times) < 2:
            return None
        rank = max(times, key=lambda r: times[r])
        middle = formats.median(t for r, t in times.items() if r != rank)
        step = max(as_number(r["step_time_s"]) or 0.0 for r in known)
        stands_out = times[rank] - middle >= STANDS_OUT * max(middle, step)
        return (rank, times[rank] / middle - 1) if stands_out and middle > 0 else None

    def as_json(self) -> dict[str, Any]:
        """Every field, for ``--json``."""
        return dataclasses.asdict(self)


def summarise_history(
    history: History, slurm: Mapping[str, JobView] | None = None, now: float | None = None
) -> RunSummary:
    """Return the run's state. ``slurm`` maps job ids to SLURM's view (a missing id: SLURM has forgotten the job).

    None means that SLURM was not asked or did not answer. Never raises for what the files hold.
    """
    now = time.time() if now is None else now
    picture = _newest_picture(history)
    values = _identity(history) | _progress(history, picture) | _times(history, picture, now)
    state, reason, extra = verdict(history, slurm, now, values["backend"], values["job_id"])
    values |= {"state": state, "reason": reason} | extra
    if state != "running":
        values |= {"rate": None, "eta_s": None, "missing": [], "left_here_s": None, "waits_for": []}
    if state == "pending":
        values |= {"nodes": [], "ranks": [], "spares": [], "phase": ""}
    return RunSummary(**values, file_faults=faults(history, active=state in ("pending", "running")))


def _newest_picture(h: History) -> dict[str, Any]:
    """Return state.json, or {} where it is of an older attempt: after a resubmission it still shows that one."""
    attempt, newest = h.state.get("attempt"), h.last(ev.AttemptStarted)
    return h.state if newest is None or attempt is None or attempt == newest.attempt else {}


def _identity(h: History) -> dict[str, Any]:
    submitted, started, owner = h.last(ev.RunSubmitted), h.last(ev.AttemptStarted), h.last(ev.JobNamed)
    job_id = owner.job_id if owner is not None else None
    if job_id is None and owner is submitted:  # written before SLURM had given it a number
        job_id = as_text(h.submission.get("job_id"))
    if not job_id and started is not None:
        job_id = started.job_id
    backend = submitted.backend if submitted is not None else None
    sweep = as_dict(h.submission.get("sweep"))
    latest, newest = (
        h.last(ev.RerunStarted, ev.RerunEnded),
        h.last(ev.AttemptStarted, ev.Waiting, ev.RoundStarted, ev.Ended),
    )
    return {
        "run": h.paths.id,
        "name": as_text(h.spec.get("name"), _name_of(h.paths.id)),
        "dir": str(h.paths.root),
        "backend": as_text(backend or h.spec.get("batch") or h.submission.get("backend"), "slurm"),
        "job_id": job_id or None,
        "sweep": as_text(sweep.get("id")) or None,
        "hold": as_text(h.spec.get("held_by")) or (h.paths.id if h.spec.get("hold") else None),
        "rerun": latest.run if isinstance(latest, ev.RerunStarted) else None,
        "waits_for": newest.runs if isinstance(newest, ev.Waiting) else [],
        "overrides": [str(o) for o in as_list(sweep.get("overrides"))],
    }


def _name_of(run_id: str) -> str:
    """``NAME`` of ``NAME-MMDD-HHMM-xxx``; the whole id when it is not of that form."""
    parts = run_id.rsplit("-", 3)
    return parts[0] if len(parts) == 4 else run_id


def _progress(h: History, picture: dict[str, Any]) -> dict[str, Any]:
    """Where it is: the leader's picture, and the events where that is missing or older."""
    outcome = h.outcome or {}
    saved, begun = next(reversed(h.standing_saves), None), h.last(ev.RoundStarted)
    ranks = [r for r in as_list(picture.get("ranks") or (begun and begun.to_wire()["ranks"])) if isinstance(r, dict)]
    hosts = as_list(picture.get("nodes")) or list(dict.fromkeys(str(r["host"]) for r in ranks if r.get("host")))
    steps = chain(
        (outcome.get("step"), picture.get("step")), (e.step for e in reversed(h.events) if isinstance(e, _TELL_STEPS))
    )
    rounds = (picture.get("round"), begun.round if begun is not None and begun.attempt == h.attempt else None)
    tries = reversed(list(h.of(ev.Saved, ev.AttemptStarted, ev.SaveFailed)))
    failed = [e for e in takewhile(lambda e: isinstance(e, ev.SaveFailed), tries) if isinstance(e, ev.SaveFailed)]
    return {
        "attempt": h.attempt if h.attempt is not None else picture.get("attempt"),
        "round": max((r for r in rounds if r is not None), default=None),
        "phase": as_text(picture.get("phase")),
        "step": next((s for s in steps if s is not None), None),
        "total_steps": as_whole(picture.get("total_steps", h.state.get("total_steps"))),
        "epoch": as_number(picture.get("epoch")),
        "epochs": as_number(picture.get("epochs")),
        "world_size": as_whole(picture.get("world_size")) or _world_size(h, begun),
        "nodes": [str(n) for n in hosts],
        "spares": [str(n) for n in as_list(picture.get("spares"))],
        "missing": [m for m in as_list(picture.get("missing")) if isinstance(m, dict)],
        "waited_s": _waited(h, picture),
        "saved_step": as_whole(picture.get("saved_step")) if saved is None else saved.step,
        "saved_t": picture.get("saved_t") if saved is None else saved.t,
        "saved_path": ((saved and saved.path) or "").removeprefix(f"{h.paths.root}/"),
        "save_failures": len(failed),
        "save_error": f"{failed[0].errno_name or ''} {failed[0].error or ''}".strip() if failed else "",
        "warnings": list(dict.fromkeys(e.text for e in h.of(ev.Warned) if e.text and e.attempt == h.attempt)),
        "metrics": as_dict(outcome.get("metrics")) or as_dict(picture.get("metrics")),
        "ranks": ranks,
        "restarts": sum(1 for e in h.of(ev.RoundStarted) if e.round),
        "rate": as_number(picture.get("rate")),
        "exit_code": as_whole(outcome.get("exit_code")),
    }


_TELL_STEPS = (ev.FirstStep, ev.Saved, ev.Stopped, ev.Evaluated, ev.WorkerFailed, ev.Ended)


def _world_size(h: History, begun: ev.RoundStarted | None) -> int | None:
    if begun is not None and begun.world_size:
        return begun.world_size
    nodes, tasks = as_whole(h.spec.get("nodes")), as_whole(h.spec.get("tasks_per_node"))
    return nodes * tasks if nodes and tasks else None


def _waited(h: History, picture: dict[str, Any]) -> float | None:
    """For how long the run has waited for its missing nodes: since the first of them was lost, or else since its leader began."""
    hosts = {m.get("host") for m in as_list(picture.get("missing")) if isinstance(m, dict)}
    begun, t = h.last(ev.AttemptStarted, ev.LeaderRevived), as_number(picture.get("t"))
    if not hosts or begun is None or t is None:
        return None
    lost = {e.host: e.t for e in h.of(ev.NodeLost) if h.after(e, begun)}
    return max(0.0, t - min(lost.get(host, begun.t) for host in hosts))


def _times(h: History, picture: dict[str, Any], now: float) -> dict[str, Any]:
    first = next(h.of(ev.RunSubmitted), None)
    begun = next(h.of(ev.AttemptStarted), None)
    latest = h.last(ev.AttemptStarted)
    last = h.last(ev.RunSubmitted, ev.Requeued)
    times: dict[str, Any] = {
        "submitted": first.t if first else h.submission.get("submitted_t"),
        "queued": last.t if last else h.submission.get("submitted_t"),
        "started": begun.t if begun else None,
        "attempt_started": latest.t if latest else None,
        "ended": (h.outcome or {}).get("t"),
        "heard": heard(h),
    }
    step, total, speed = (as_number(picture.get(k)) for k in ("step", "total_steps", "rate"))
    if step is not None and total is not None and speed and total >= step:
        times["eta_s"] = (total - step) / speed
    allocation, limit = picture.get("allocation_t"), as_number(h.spec.get("timeout_min"))
    if allocation is not None and limit is not None:
        times["left_here_s"] = max(0.0, allocation + 60 * limit - run_now(h, now))
    spent, hours = as_number(picture.get("spent_s")), as_number(as_dict(h.spec.get("restart")).get("max_total_hours"))
    if spent is not None and hours is not None:
        times["left_in_all_s"] = max(0.0, hours * 3600 - spent)
    return times
