"""Tell why SLURM sent a signal, from what ``scontrol show job`` says in that moment. Pure.

Measured on 22.05.8 with a handler that asks at once (tests/slurm/test_meaning_real.py measures again):

what happened                     signal       JobState             Restarts  PreemptTime       what follows
preemption, grace begins          TERM (USR2)  RUNNING, SIGNALING   same      now               KILL at EndTime + KillWait
grace over, PreemptMode=REQUEUE   TERM         COMPLETING           one more  None              KILL after KillWait; SLURM requeues
  (grace 0: at once)
the same, CANCEL or --no-requeue  TERM         COMPLETING           same      = EndTime         KILL after KillWait; not requeued
scancel, by user or root          TERM         COMPLETING           same      None, < EndTime   KILL after KillWait; not requeued
scontrol requeue[hold]            TERM         COMPLETING           one more  None              KILL after KillWait; SLURM requeues
time limit                        TERM         COMPLETING           same      None              KILL after KillWait; not requeued;
                                                                                                Reason=TimeLimit
--signal=USR2@N                   USR2         RUNNING              same      None              the time limit, at EndTime
scancel --signal=S                S            RUNNING              same      None              nothing: TERM asks for the end, USR2
                                                                                                for nothing that SLURM would do
kill -9 of the batch script       TERM         COMPLETING           same      None              KILL after KillWait; not requeued;
                                                                                                Reason=JobLaunchFailure

ExitCode says nothing: 0:15 is the batch script's end by the same TERM, and comes some milliseconds later, or never.
"""

from __future__ import annotations

from launcher.frozen import frozen
from launcher.slurm.jobs import JobFacts

EARLY_S = 60.0
"""SLURM sends --signal up to this much early (its clock for time limits ticks in minutes)."""
_SLACK_S = 5.0
_SCRIPT_ENDED = ("NonZeroExitCode", "JobLaunchFailure", "RaisedSignal", "OutOfMemory")
"""Reason of a job whose batch script ended badly before anybody had asked for its end."""
_NODE_ENDED = ("NodeDown", "BootFailure", "SystemFailure")
"""Reason of a job that a lost node ends and that may not be requeued. JobState is COMPLETING first, NODE_FAIL afterwards."""


@frozen
class Meaning:
    """Why a signal came."""

    kind: str
    """"preempted"|"preempted_now"|"cancelled"|"time_limit"|"script_gone"|"user"|"terminated" (TERM sent by hand)|"nothing" (USR2, and SLURM
    wants nothing of the job)|"unknown" (SLURM does not say)"""
    left_s: float | None = None
    """Seconds until SLURM ends the processes by TERM (KillWait later: KILL); 0: it has. None: not known."""
    slurm_requeues: bool = False
    """SLURM has already decided to run the job again: nothing needs to be asked of it."""


def meaning_of(
    facts: JobFacts | None, signal: str, *, restart_count: int, now: float, lead_s: float, requested: bool = False
) -> Meaning:
    """Return why ``signal`` ("TERM" or "USR2") came.

    ``facts`` is what SLURM says now (None: it does not answer), ``restart_count`` this life's SLURM_RESTART_COUNT,
    ``lead_s`` the N of ``--signal=USR2@N``, ``requested`` whether the user has left a request for the leader.
    """
    if facts is None:
        return Meaning("user") if requested and signal == "USR2" else Meaning("unknown")
    if facts.state in ("RUNNING", "SIGNALING", "STOPPED", "SUSPENDED"):
        return _running(facts, signal, now, lead_s, requested)
    if (facts.restarts or 0) > restart_count or facts.state in ("PENDING", "REQUEUED"):
        return Meaning("preempted_now", 0.0, slurm_requeues=True)
    return _ending(facts)


def _running(facts: JobFacts, signal: str, now: float, lead_s: float, requested: bool) -> Meaning:
    left = max(0.0, facts.end_t - now) if facts.end_t is not None else None
    if requested and signal == "USR2":  # also of a job that is being preempted: its user does not want it back
        return Meaning("user", None if facts.preempt_t is None else left)
    if facts.preempt_t is not None:
        return Meaning("preempted", left)
    if signal == "USR2" and left is not None and left <= lead_s + EARLY_S + _SLACK_S:
        return Meaning("time_limit", left)
    if signal == "TERM" and left is not None and left <= 0:
        return Meaning("time_limit", 0.0)
    return Meaning("terminated" if signal == "TERM" else "nothing")


def _ending(facts: JobFacts) -> Meaning:
    """The job is being ended and is not to run again."""
    if facts.state == "TIMEOUT" or facts.reason == "TimeLimit":
        return Meaning("time_limit", 0.0)
    if facts.state == "PREEMPTED":
        return Meaning("preempted_now", 0.0)
    if facts.reason.startswith(_SCRIPT_ENDED):
        return Meaning("script_gone", 0.0)
    if facts.reason in _NODE_ENDED:
        return Meaning("unknown", 0.0)
    if facts.preempt_t is None or facts.end_t is None or facts.preempt_t < facts.end_t - 1:
        return Meaning("unknown" if facts.state == "NODE_FAIL" else "cancelled", 0.0)
    # One second apart: the clock ticked between slurmctld's two looks at it, or somebody was quick to cancel.
    return Meaning("preempted_now" if facts.preempt_t >= facts.end_t else "unknown", 0.0)
