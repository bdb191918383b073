"""Decide which state a run is in, and why: from its outcome, from SLURM's view of its job, or from its process here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from launcher.hosts import hosts_or_none
from launcher.report.formats import duration
from launcher.report.model.hearing import STALE_S, heard, is_waiting, silence
from launcher.report.model.history import History, as_text
from launcher.run.events import AttemptStarted, JobNamed, Requeued
from launcher.run.processes import runs_here
from launcher.run.state import is_this_job

if TYPE_CHECKING:
    from launcher.slurm.jobs import JobView

State = Literal["pending", "running", "completed", "failed", "cancelled"]

LOST_S = 600.0
"""A local run on another host counts as dead after this silence: its process cannot be looked at from here."""

UNKNOWN = "Its files cannot be read, so its state is not known"
"""Of a run that nothing but its files could tell of (`History.is_unknown`); it counts as pending while no one has ended it."""

_DEAD: dict[str, tuple[State, str]] = {
    "CANCELLED": ("cancelled", "it was cancelled in SLURM"),
    "COMPLETED": ("failed", "the job ended without writing an outcome"),
    "FAILED": ("failed", "the leader died and left no message"),
    "TIMEOUT": ("failed", "SLURM ended it at the time limit"),
    "DEADLINE": ("failed", "SLURM ended it at its deadline"),
    "NODE_FAIL": ("failed", "a node of the allocation died"),
    "BOOT_FAIL": ("failed", "a node of the allocation did not boot"),
    "OUT_OF_MEMORY": ("failed", "SLURM killed it for exceeding the memory limit"),
    "PREEMPTED": ("failed", "it was preempted and SLURM did not requeue it"),
    "REVOKED": ("failed", "SLURM revoked it"),
}
"""SLURM's terminal states: what a run that left no outcome is, and why."""

_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})


Verdict = tuple[State, str, dict[str, Any]]
"""State, reason, and what else of the summary follows from them."""


def verdict(h: History, slurm: Mapping[str, JobView] | None, now: float, backend: str, job_id: str | None) -> Verdict:
    """Return the state of a run. Without an outcome it is SLURM's view of ``job_id`` or, without SLURM, the process that counts."""
    if h.outcome is not None:
        word = h.outcome.get("state")
        state: State = word if word in ("completed", "failed", "cancelled") else "failed"
        return state, as_text(h.outcome.get("reason")), {}
    told = _local_state(h, now) if backend == "local" else _slurm_state(h, slurm, now, job_id)
    state, _, extra = told
    if not h.is_unknown or state == "running" or "starts" in extra:  # SLURM has told it
        return told
    word = extra.get("slurm_state")
    return state, f"{UNKNOWN}{f' (SLURM says {word})' if word else ''}.", extra


def _slurm_state(h: History, slurm: Mapping[str, JobView] | None, now: float, job_id: str | None) -> Verdict:
    waiting, quiet_s = is_waiting(h), silence(h, now)
    job = slurm.get(job_id) if slurm is not None and job_id is not None else None
    if job is not None and is_this_job(h.submission, h.paths.root, name=job.name, command=job.command):
        word = job.state
        if word in _WAITING:
            return "pending", job.reason, {"starts": job.start_estimate_t, "partition": job.partition}
        lag_s = 5.0 if word == "CANCELLED" else 15.0  # of the outcome file behind SLURM's word, on a shared file system
        if word in _DEAD and (waiting or quiet_s > lag_s):
            return _dead(h, job, waiting)
        if word in ("SUSPENDED", "STOPPED"):
            return "running", "", {"phase": "suspended", "rate": None, "eta_s": None}
        if word not in _DEAD:
            starting = {"phase": "starting"} if waiting else {}
            return "running", "", starting | {"silent": not waiting and quiet_s > STALE_S}
    if waiting:
        if slurm is not None and job_id is not None and quiet_s > STALE_S:
            return _lost(h, "SLURM no longer knows this job.")
        return "pending", "", {}
    if slurm is not None and quiet_s > STALE_S:
        return _lost(h, "The leader died and left no message; SLURM no longer knows this job.")
    return "running", "", {"silent": quiet_s > STALE_S}


def _lost(h: History, why: str) -> Verdict:
    return "failed", why, {"ended": heard(h)}


def _dead(h: History, job: JobView, waiting: bool) -> Verdict:
    word = job.state
    state, why = _DEAD[word]
    handed = h.last(JobNamed)
    when = " before the job started" if waiting else ""
    reason = f"{why[0].upper()}{why[1:]}{when} (SLURM says {word})."
    if state == "failed" and isinstance(handed, Requeued) and handed.how == "requeue":
        lost = "SLURM accepted the requeue and then lost it, as happens when slurmctld is killed: the job ended"
        reason = f"{lost} ({word}) and will not start again. launcher resubmit {h.paths.id} continues from the newest checkpoint."
    elif waiting and word == "FAILED" and not (h.paths.submitit / f"{job.job_id}_0_log.out").exists():
        # The batch script's log is on that host alone, or could not be opened there (SLURM before 23.02: ExitCode 0:53).
        host = next(iter(hosts_or_none(job.nodes) or []), "")
        where, other = (
            (f"{host}, the job's first node,", f" slurm.exclude={host}") if host else ("The job's first node", "")
        )
        reason = f"{where} does not see the run's folder, or cannot write there. "
        reason += f"launcher resubmit {h.paths.id}{other} starts it on others."
    return state, reason, {"ended": heard(h), "slurm_state": word}


def _local_state(h: History, now: float) -> Verdict:
    """Judge a run without SLURM by its process, where that is on this host, else by its silence."""
    quiet_s, submission = silence(h, now), h.submission
    host, pid = submission.get("host"), submission.get("pid")
    alive = runs_here(host, pid, submission.get("pid_started")) if pid is not None else None
    if alive is False and quiet_s > 5.0:
        how = f"launcher resubmit {h.paths.id} continues from the newest checkpoint."
        return _lost(h, f"The leader died and left no message: its process has ended. {how}")
    if not alive and quiet_s > LOST_S:
        where = f" on {host}" if host else ""
        return _lost(h, f"The leader{where} has written nothing for {duration(LOST_S)} or longer: it counts as dead.")
    if h.last(AttemptStarted) is None and not h.state:
        return "pending", "starting", {}
    return "running", "", {"silent": quiet_s > STALE_S}
