"""``python -m launcher.node.allocation.teardown RUN_DIR [TERM]``: run by the batch script when srun has ended; TERM: it was sent one.

An outcome: nothing to do. An allocation already given back: its start is pulled forward, which only the job's last process
can do well (`launcher.slurm.restart`); or it is given back again, where a slurmctld that was killed has forgotten its last
seconds and would take the end of these processes for the end of the job (measured: COMPLETED). Neither: the leader died
without a word (kill -9, a node's power), and SLURM would call the job FAILED and never requeue it. So it is requeued from
here, a bounded number of times, unless somebody has cancelled it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.errors import RunFailedError, SiteError
from launcher.frozen import frozen
from launcher.node.allocation.allocation import NEEDED, Allocation, CancelledError, NotAnsweredError
from launcher.node.allocation.early_exits import leader_words
from launcher.node.checkpoints import fence
from launcher.node.policy.budgets import Budgets, backoff_s
from launcher.node.wire.connection import allocation_life
from launcher.run import clock, events
from launcher.run.asking import load_object, patiently
from launcher.run.batch import COMPLETED, JUDGED
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.run.state import read_outcome, read_state, write_outcome
from launcher.slurm.commands import clean_environment

__all__ = ["Verdict", "judge", "main"]


_UNHEARD_S = 60.0
"""slurmctld may be restarting: it is asked again for so long."""
_FORGOTTEN_S = 600.0
"""A slurmctld that was killed just after it had taken the run back may come back without that. The job's last process stays so long
to ask once more, where KillWait does not end it before."""


@frozen
class Verdict:
    """What to do: "nothing", "requeue", "fail" or "cancel", and why in one sentence."""

    action: str
    reason: str
    delay_s: float = 0.0
    evidence: str = "leader_gone"
    said: str = ""
    """How the leader ended, where somebody knows."""


def judge(
    *,
    outcome: bool,
    history: list[dict[str, Any]],
    life: tuple[str | None, int],
    lives_without_attempt: int,
    meaning: str,
    may_requeue: bool,
    max_restarts: int,
    max_total_hours: float,
    now: float,
    said: str = "",
) -> Verdict:
    """Pure. ``life`` is the job's id and restart count, ``meaning`` what SLURM says of the job now ("running" when nothing
    happened to it), ``now`` the time of day, ``said`` how the leader ended, where that is known."""
    if outcome:
        return Verdict("nothing", "The run has an outcome.")
    last = _last(history, "submitted", "attempt_started", "requeued")
    if last.get("type") in ("attempt_started", "requeued") and str(last.get("job_id") or life[0]) != str(life[0]):
        return Verdict("nothing", f"Job {last['job_id']} carries the run on.")
    if meaning == "cancelled":
        return Verdict("cancel", "The job was cancelled.")
    if meaning == "unknown":  # this host may be cut off, and the run may go on elsewhere
        return Verdict(
            "nothing", "SLURM does not answer: `launcher resubmit` continues the run if it does not come back."
        )
    if _handed_back(history, life):
        again = "SLURM has forgotten that it took the run back; it is asked again."
        return Verdict("requeue", again, float(last.get("delay_s") or 0.0), "forgotten")
    budgets = Budgets().feed_all(history)
    idle = budgets.idle_attempts + lives_without_attempt
    how = said or "The leader died without a word"
    if not may_requeue:
        return Verdict("fail", f"{how}; the run may not be requeued.", said=said)
    if not _led(history, life):  # time in the queue, before a life that had no leader, is not the run's
        now = float(history[-1].get("t") or 0.0) if history else 0.0
    if budgets.spent_with_current_s(now) >= max_total_hours * 3600:
        return Verdict("fail", f"{how}; restart.max_total_hours is used up.", said=said)
    if idle > max_restarts or budgets.restarts["leader_gone"] >= max_restarts:
        if lives_without_attempt == idle:
            none = f"{said}; no agent could begin" if said else "No agent could begin"
            return Verdict("fail", f"{none}, {idle} times in a row.", said=said)
        return Verdict("fail", f"{how}; {idle} attempts in a row made no progress.", said=said)
    delay_s = backoff_s(budgets.poor_attempts + lives_without_attempt)
    return Verdict("requeue", f"{how}; the run is requeued.", delay_s, said=said)


def _handed_back(history: list[dict[str, Any]], life: tuple[str | None, int]) -> bool:
    """The last word is that this very life of the job gave it back; it may be an earlier life's, to this one."""
    last = _last(history, "submitted", "attempt_started", "requeued")
    return last.get("type") == "requeued" and last.get("how") != "continuation" and _led(history, life)


def _led(history: list[dict[str, Any]], life: tuple[str | None, int]) -> bool:
    """The newest attempt's leader was one of this very life of the job."""
    leader = _last(history, "attempt_started")
    return (str(leader.get("job_id")), leader.get("restart_count") or 0) == (str(life[0]), life[1])


def main(argv: Sequence[str] | None = None) -> int:
    """Look, judge, act; returns `COMPLETED`, `JUDGED`, or 1 when the run directory cannot be read."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[1:] not in ([], ["TERM"]) or not words:
        print("usage: python -m launcher.node.allocation.teardown RUN_DIR [TERM]", file=sys.stderr)
        return 2
    paths = RunPaths(Path(words[0]).absolute())
    try:
        return _tear_down(paths, told=len(words) > 1)
    except OSError as error:
        print(f"The run directory {paths.root} cannot be read: {error}", file=sys.stderr)
        return 1


def _tear_down(paths: RunPaths, *, told: bool) -> int:
    try:
        spec = patiently(lambda: RunSpec.read(paths.spec), paths.root)
    except ValueError as error:
        raise OSError(f"{paths.spec.name}: {error}") from error
    if spec.batch != "slurm" or not os.environ.get("SLURM_JOB_ID"):
        return JUDGED
    from launcher.node.allocation.slurm_allocation import SlurmAllocation

    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # `scontrol requeue` sends TERM to this very process
    clock.resume(read_state(paths.state))  # the leader was on this host, and what it has told is by its clock
    allocation = SlurmAllocation(spec, paths)
    if (grace_end := _grace_end(spec, patiently(lambda: events.recall(paths.events), paths.root))) is not None:
        allocation.in_grace_until(grace_end)
    end = time.monotonic() + _FORGOTTEN_S
    while act(spec, paths, allocation, told=told):
        history = events.read(paths.events)
        last = allocation.last_act(_end_began(history), srun_killed=bool(_last(history, "requeued").get("let_go")))
        if allocation.taken() or time.monotonic() > end:
            return _become(last)
    outcome = patiently(lambda: load_object(paths.outcome, paths.root), paths.root) or {}
    return COMPLETED if outcome.get("state") == "completed" else JUDGED


def _become(last: tuple[str, ...]) -> int:
    """Leave by the job's last act."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Whatever the command's status is: called again after an error, the teardown would keep the job from its end.
    shell = ["/bin/sh", "-c", f'"$@"; exit {JUDGED}', "sh", *last]
    try:
        os.execvpe(shell[0], shell, clean_environment())  # noqa: S606 a fixed command of SLURM
    except OSError as error:
        print(f"{last[0]}: {error}", file=sys.stderr)
    return JUDGED


def act(
    spec: RunSpec,
    paths: RunPaths,
    allocation: Allocation,
    *,
    exclude: tuple[str, ...] = (),
    told: bool = False,
    said: str = "",
) -> bool:
    """Judge the run's end and carry it out; the next attempt should not get the hosts ``exclude``.

    ``told``: the batch script was sent TERM. From a SLURM that wants nothing of the job, that was somebody's wish to end it.
    ``said``: what the caller knows of the leader's end. True: SLURM runs this job again, and it should start soon. Raises OSError
    when the run's folder does not answer for minutes: nothing is known then, and nothing was done.
    """
    history, outcome, attempt = patiently(lambda: _left_behind(paths), paths.root)
    if _superseded(history, allocation.job_id):
        print("Somebody has submitted the run again: what becomes of it is another job's business.", file=sys.stderr)
        return False
    if outcome is None:
        _await_answer(allocation)
    if allocation.taken():
        return not _delayed(history)
    life = (allocation.job_id, allocation.restart_count)
    verdict = judge(
        outcome=outcome is not None or read_outcome(paths.outcome) is not None,  # written while SLURM was waited for
        history=history,
        life=life,
        lives_without_attempt=_lives_without_attempt(history, allocation),
        meaning=_meaning(allocation, told and not _handed_back(history, life)),  # a requeue sends TERM, too
        may_requeue=allocation.requeues and spec.restart.requeue,
        max_restarts=spec.restart.max_restarts,
        max_total_hours=spec.restart.max_total_hours,
        now=clock.now(),
        said=said or _leaders_end(paths, history, life),
    )
    if verdict.action == "nothing":
        print(verdict.reason, file=sys.stderr)
        _cancel_heir(paths, allocation, history, attempt)
        return _to_hasten(history)
    fence.depose(paths, attempt)  # a leader that only stood still is woken by SLURM's signals at the latest
    more = {"said": verdict.said} if verdict.said else {}
    _tell(paths, attempt, "decision", evidence=verdict.evidence, action=verdict.action, reason=verdict.reason, **more)
    if verdict.action == "requeue":
        return _hand_back(paths, allocation, attempt, verdict, exclude)
    _end(paths, allocation, attempt, "cancelled" if verdict.action == "cancel" else "failed", verdict.reason)
    return False


def _hand_back(
    paths: RunPaths, allocation: Allocation, attempt: int, verdict: Verdict, exclude: tuple[str, ...]
) -> bool:
    """As `act`, of a run that goes on."""
    try:
        began = clock.now()
        handed = allocation.hand_back(exclude=exclude, delay_s=verdict.delay_s)
    except CancelledError:
        _end(paths, allocation, attempt, "cancelled", "The job was cancelled.")
        return False
    except NotAnsweredError as error:  # it may have taken the run: this cannot be its end
        print(f"{verdict.reason} SLURM does not answer: {error}", file=sys.stderr)
        return False
    except SiteError as error:
        _end(paths, allocation, attempt, "failed", f"{verdict.reason} SLURM did not take it: {error}")
        return False
    if exclude:
        _tell(paths, attempt, "excluded", hosts=list(exclude), why="the leader on it is gone")
    if handed.given_up:
        _tell(paths, attempt, "readmitted", hosts=list(handed.given_up), why=NEEDED)
    _tell(paths, attempt, "attempt_ended", why=verdict.reason)
    took = round(clock.now() - began, 2)
    _tell(paths, attempt, "requeued", how=handed.how, job_id=handed.job_id, seconds=took, delay_s=verdict.delay_s)
    return handed.how != "continuation" and verdict.delay_s == 0


def _leaders_end(paths: RunPaths, history: list[dict[str, Any]], life: tuple[str | None, int]) -> str:
    """What the leader said of its end before it left; "" when it died without a word."""
    words = leader_words(paths, allocation_life(os.environ))
    return f"The leader {'failed' if _led(history, life) else 'could not begin'}: {words}" if words else ""


def _left_behind(paths: RunPaths) -> tuple[list[dict[str, Any]], dict[str, Any] | None, int]:
    """History, outcome and newest attempt. Raises OSError when one of them is not known."""
    outcome = load_object(paths.outcome, paths.root)
    return events.recall(paths.events), outcome, max(fence.attempts(paths), default=0)


def _superseded(history: list[dict[str, Any]], job_id: str | None) -> bool:
    """The run was submitted again after this job's last attempt, and its outcome set aside for that."""
    mine = False
    for e in history:
        if e["type"] == "attempt_started":
            mine = str(e.get("job_id")) == str(job_id)
        elif e["type"] == "submitted" and mine:
            return True
    return False


def _cancel_heir(paths: RunPaths, allocation: Allocation, history: list[dict[str, Any]], attempt: int) -> None:
    """Somebody cancelled this job when its continuation was in the queue already: that is the run, too."""
    last = _last(history, "submitted", "attempt_started", "requeued", "ended")
    if (
        last.get("how") == "continuation"
        and str(last.get("job_id")) != str(allocation.job_id)
        and allocation.cancelled()
    ):
        allocation.cancel(str(last["job_id"]))
        _end(paths, allocation, attempt, "cancelled", "The job was cancelled.")


def _to_hasten(history: list[dict[str, Any]]) -> bool:
    """The leader has handed this very job back, without a delay."""
    last = _last(history, "attempt_started", "requeued")
    return last.get("type") == "requeued" and last.get("how") != "continuation" and not last.get("delay_s")


def _last(history: list[dict[str, Any]], *types: str) -> dict[str, Any]:
    return next((e for e in reversed(history) if e["type"] in types), {})


def _grace_end(spec: RunSpec, history: list[dict[str, Any]]) -> float | None:
    """When the grace time ends of which this life's leader was told."""
    last = _last(history, "attempt_started", "signal")
    if last.get("meaning") != "preempted" or last.get("left_s") is None:
        return None
    return float(last["t"] + last["left_s"] - spec.site.kill_wait_s)


def _end_began(history: list[dict[str, Any]]) -> float | None:
    """When SLURM began to end this life of the job: it was asked to, or told that it had."""
    attempt = max((i for i, e in enumerate(history) if e["type"] == "attempt_started"), default=0)
    began = [
        e["t"] - (e.get("seconds") or 0.0)
        for e in history[attempt:]
        if e["type"] == "requeued" or e.get("meaning") == "preempted_now"
    ]
    return min(began, default=None)


def _end(paths: RunPaths, allocation: Allocation, attempt: int, state: str, reason: str) -> None:
    allocation.forbid_requeue()
    code = 9 if state == "cancelled" else RunFailedError.exit_code
    _tell(paths, attempt, "attempt_ended", why=reason)
    _tell(paths, attempt, "ended", state=state, reason=reason, exit_code=code, step=None)
    write_outcome(
        paths.outcome,
        {"state": state, "reason": reason, "exit_code": code, "step": None, "t": clock.now(), "attempt": attempt, "metrics": {},
         "cause": None},
    )  # fmt: skip
    print(reason, file=sys.stderr)


def _delayed(history: list[dict[str, Any]]) -> bool:
    """This life's leader asked for a later start, since attempts made no progress."""
    return bool(_last(history, "attempt_started", "requeued").get("delay_s"))


def _await_answer(allocation: Allocation) -> None:
    """slurmctld may be starting again; what it has forgotten of its last seconds is known only then."""
    end = time.monotonic() + _UNHEARD_S
    while not allocation.answers() and time.monotonic() < end:
        time.sleep(1.0)


def _meaning(allocation: Allocation, told: bool) -> str:
    """What happened to the job, if anything: asked as if TERM had come now."""
    if allocation.cancelled():
        return "cancelled"
    said = allocation.meaning("TERM").kind
    if said == "terminated":  # a running job without a reason of SLURM's for a signal
        return "cancelled" if told else "running"
    return "running" if said == "unknown" and allocation.answers() else said


def _lives_without_attempt(history: list[dict[str, Any]], allocation: Allocation) -> int:
    """Starts of this job, up to this one, in which no leader came so far as to begin an attempt, in a row."""
    lives = [
        e.get("restart_count") or 0
        for e in history
        if e["type"] == "attempt_started" and str(e.get("job_id")) == str(allocation.job_id)
    ]
    return max(0, allocation.restart_count - (lives[-1] if lives else -1))


def _tell(paths: RunPaths, attempt: int, type_: str, **values: Any) -> None:
    try:
        events.append(paths.events, events.event(type_, attempt=attempt, **values))
    except OSError as error:
        print(f"events.jsonl cannot be written: {error}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
