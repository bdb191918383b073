"""``python -m launcher.runtime.teardown RUN_DIR``: run by the batch script when srun has ended.

An outcome: nothing to do. An allocation already given back: its start is pulled forward once more. Neither: the leader
died without a word (kill -9, a node's power), and SLURM would call the job FAILED and never requeue it. So it is requeued
from here, a bounded number of times, unless somebody has cancelled it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.errors import RunFailedError, SiteError
from launcher.run import events
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.run.state import read_outcome, write_outcome
from launcher.runtime import fence
from launcher.runtime.budgets import Budgets, backoff_s
from launcher.runtime.handover import Allocation, CancelledError

__all__ = ["Verdict", "judge", "main"]


_UNHEARD_S = 60.0
"""slurmctld may be restarting: it is asked again for so long."""


@dataclass(frozen=True)
class Verdict:
    """What to do: "nothing", "requeue", "fail" or "cancel", and why in one sentence."""

    action: str
    reason: str
    delay_s: float = 0.0


def judge(
    *,
    outcome: bool,
    history: list[dict[str, Any]],
    lives_without_attempt: int,
    meaning: str,
    may_requeue: bool,
    max_restarts: int,
) -> Verdict:
    """Pure. ``meaning`` is what SLURM says of the job now ("running" when nothing happened to it)."""
    if outcome:
        return Verdict("nothing", "The run has an outcome.")
    attempts = [e for e in history if e["type"] in ("attempt_started", "requeued")]
    if attempts and attempts[-1]["type"] == "requeued":
        return Verdict("nothing", "The run was handed back already.")
    if meaning == "cancelled":
        return Verdict("cancel", "The job was cancelled.")
    if meaning == "unknown":  # this host may be cut off, and the run may go on elsewhere
        return Verdict(
            "nothing", "SLURM does not answer: `launcher resubmit` continues the run if it does not come back."
        )
    budgets = Budgets().feed_all(history)
    idle = budgets.idle_attempts + lives_without_attempt
    if not may_requeue:
        return Verdict("fail", "The leader ended without a word and the run may not be requeued.")
    if idle > max_restarts or budgets.restarts["leader_gone"] >= max_restarts:
        return Verdict("fail", f"The leader ended without a word, and {idle} attempts in a row made no progress.")
    return Verdict("requeue", "The leader ended without a word; the run is requeued.", backoff_s(idle))


def main(argv: Sequence[str] | None = None) -> int:
    """Look, judge, act; returns 0, or 1 when the run could not be handed back."""
    words = list(sys.argv[1:] if argv is None else argv)
    if len(words) != 1:
        print("usage: python -m launcher.runtime.teardown RUN_DIR", file=sys.stderr)
        return 2
    paths = RunPaths(Path(words[0]).absolute())
    try:
        spec = RunSpec.read(paths.spec)
    except (OSError, ValueError) as error:
        print(f"The run directory {paths.root} cannot be read: {error}", file=sys.stderr)
        return 1
    if spec.batch != "slurm" or not os.environ.get("SLURM_JOB_ID"):
        return 0
    from launcher.runtime.slurm_allocation import SlurmAllocation

    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # `scontrol requeue` sends TERM to this very process
    return act(spec, paths, SlurmAllocation(spec, paths))


def act(spec: RunSpec, paths: RunPaths, allocation: Allocation, *, exclude: tuple[str, ...] = ()) -> int:
    """Judge the run's end and carry it out; the next attempt should not get the hosts ``exclude``."""
    if allocation.taken():
        # The last process of the job is this one: if it ended after StartTime, SLURM would set the full delay again.
        if not _delayed(paths):
            allocation.pull_forward()
        return 0
    history = events.read(paths.events)
    verdict = judge(
        outcome=read_outcome(paths.outcome) is not None,
        history=history,
        lives_without_attempt=_lives_without_attempt(paths, allocation),
        meaning=_meaning(allocation),
        may_requeue=allocation.requeues and spec.restart.requeue,
        max_restarts=spec.restart.max_restarts,
    )
    if verdict.action == "nothing":
        _hasten(history, allocation)
        print(verdict.reason, file=sys.stderr)
        return 0
    attempt = max(fence.attempts(paths), default=0)
    _tell(paths, attempt, "decision", evidence="leader_gone", action=verdict.action, reason=verdict.reason)
    if verdict.action == "requeue":
        try:
            began = time.time()
            handed = allocation.hand_back(exclude=exclude, delay_s=verdict.delay_s)
        except CancelledError:
            return _end(paths, allocation, attempt, "cancelled", "The job was cancelled.")
        except SiteError as error:
            return _end(paths, allocation, attempt, "failed", f"{verdict.reason} SLURM did not take it: {error}")
        _tell(paths, attempt, "attempt_ended", why=verdict.reason)
        _tell(paths, attempt, "requeued", how=handed.how, job_id=handed.job_id, seconds=round(time.time() - began, 2))
        if handed.how != "continuation" and verdict.delay_s == 0:
            allocation.pull_forward()
        return 0
    return _end(paths, allocation, attempt, "cancelled" if verdict.action == "cancel" else "failed", verdict.reason)


def _hasten(history: list[dict[str, Any]], allocation: Allocation) -> None:
    """Pull the start of a requeued job forward once more: this process is the job's last one.

    The leader has done so as its last act, but on a slow host srun and the other agents may end after that start time, and
    then SLURM sets the full 121 s again (measured).
    """
    last: dict[str, Any] = next((e for e in reversed(history) if e["type"] in ("attempt_started", "requeued")), {})
    handed_back = last.get("type") == "requeued" and last.get("how") != "continuation"
    if handed_back and not last.get("delay_s") and last.get("job_id") in (None, allocation.job_id):
        allocation.pull_forward()


def _end(paths: RunPaths, allocation: Allocation, attempt: int, state: str, reason: str) -> int:
    allocation.forbid_requeue()
    code = 9 if state == "cancelled" else RunFailedError.exit_code
    _tell(paths, attempt, "attempt_ended", why=reason)
    _tell(paths, attempt, "ended", state=state, reason=reason, exit_code=code, step=None)
    write_outcome(
        paths.outcome,
        {"state": state, "reason": reason, "exit_code": code, "step": None, "t": time.time(), "attempt": attempt, "metrics": {},
         "cause": None},
    )  # fmt: skip
    print(reason, file=sys.stderr)
    return 0


def _delayed(paths: RunPaths) -> bool:
    """The leader asked for a later start, since attempts made no progress."""
    requeued = [e for e in events.read(paths.events) if e["type"] == "requeued"]
    return bool(requeued and requeued[-1].get("delay_s"))


def _meaning(allocation: Allocation) -> str:
    """What happened to the job, if anything: asked as if TERM had come now."""
    end = time.monotonic() + _UNHEARD_S
    while not allocation.answers() and time.monotonic() < end:
        time.sleep(2.0)
    if allocation.cancelled():
        return "cancelled"
    said = allocation.meaning("TERM").kind
    # A running job without a reason for a signal: none was sent.
    return "running" if said == "unknown" and allocation.answers() else said


def _lives_without_attempt(paths: RunPaths, allocation: Allocation) -> int:
    """Starts of this job in which no leader came so far as to claim an attempt."""
    claims = sum(str(fence.claimant(paths, n).get("job_id")) == str(allocation.job_id) for n in fence.attempts(paths))
    return max(0, allocation.restart_count + 1 - claims)


def _tell(paths: RunPaths, attempt: int, type_: str, **values: Any) -> None:
    try:
        events.append(paths.events, events.event(type_, attempt=attempt, **values))
    except OSError as error:
        print(f"events.jsonl cannot be written: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
