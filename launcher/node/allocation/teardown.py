"""``python -m launcher.node.allocation.teardown RUN_DIR [TERM]``: run by the batch script when srun has ended; TERM: it was sent one.

- The run has an outcome: nothing to do.
- The allocation was given back already: its start is pulled forward, which only the job's last process can do well
  (`launcher.slurm.restart`). A slurmctld that was killed may have forgotten its last seconds and would take the end of these
  processes for the end of the job (measured: COMPLETED): then it is given back again.
- Neither: the leader died and left no message (kill -9, a node's power), and SLURM would call the job FAILED and never requeue
  it. It is requeued from here, a bounded number of times, unless somebody has cancelled it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.errors import SiteError
from launcher.frozen import frozen
from launcher.node.allocation.allocation import NEEDED, Allocation, CancelledError, HandedBack, NotAnsweredError
from launcher.node.allocation.early_exits import leader_words, srun_end, start_words, step_cancelled
from launcher.node.allocation.end_run import end_run, tell
from launcher.node.allocation.host_end import is_shutting_down
from launcher.node.checkpoints import claims
from launcher.node.policy.budgets import Budgets, backoff_s
from launcher.run import clock, event_lines
from launcher.run.asking import load_object, patiently
from launcher.run.batch import COMPLETED, JUDGED
from launcher.run.events import (
    AttemptStarted,
    Decided,
    Ended,
    Event,
    JobNamed,
    Requeued,
    RunSubmitted,
    SignalReceived,
    last_of,
)
from launcher.run.paths import RunPaths
from launcher.run.spec import RestartSpec, RunSpec
from launcher.run.state import forget_passed, is_requested, read_state
from launcher.slurm.commands import clean_environment
from launcher.slurm.environ import job_environ

_PREEMPTED = ("preempted", "preempted_now")
_UNANSWERED_S = 600.0
"""slurmctld may be restarting, and nobody else would have it start the run again: it is asked for so long."""
_FORGOTTEN_S = 600.0
"""A slurmctld that was killed just after it had taken the run back may come back without that. The job's last process stays so long
to ask once more, where KillWait does not end it before."""


@frozen
class EndDecision:
    """What to do: "nothing", "requeue", "fail" or "cancel", and why in one sentence."""

    action: str
    reason: str
    delay_s: float = 0.0
    evidence: str = "leader_gone"
    said: str = ""
    """How the leader ended, where that is known."""


def decide_end(
    restart: RestartSpec,
    history: list[Event],
    *,
    life: tuple[str | None, int],
    meaning: str,
    now: float,
    said: str = "",
) -> EndDecision:
    """Decide what becomes of a run without an outcome whose leader has ended. Pure.

    ``life`` is the job's id and restart count, ``meaning`` what SLURM says of the job now ("running" when nothing happened to
    it), ``now`` the time of day, ``said`` how the leader ended, where that is known.
    """
    last = last_of(history, JobNamed)
    if isinstance(last, (AttemptStarted, Requeued)) and last.job_id not in (None, "", life[0]):
        return EndDecision("nothing", f"Job {last.job_id} continues the run.")
    if meaning == "cancelled":
        return EndDecision("cancel", "The job was cancelled.")
    if meaning == "unknown":  # this host may be cut off, and the run may go on elsewhere
        return EndDecision(
            "nothing", "SLURM does not answer: `launcher resubmit` continues the run if it does not come back."
        )
    if (back := _handed_back(history, life)) is not None:
        again = "SLURM has lost the requeue of this run, so the launcher requeues it again."
        return EndDecision("requeue", again, back.delay_s or 0.0, "forgotten")
    if meaning in _PREEMPTED and restart.requeue and not _led(history, life):
        # A container that is being made does not ignore TERM. Nothing is wrong with the run: no budget is charged.
        early = "The job was preempted before an agent could begin; the run is requeued."
        return EndDecision("requeue", early, evidence="preempted")
    how = said or "The leader died and left no message"
    budgets = Budgets().feed_all(history)
    alone = _lives_without_attempt(history, life)
    idle = budgets.idle_attempts + alone
    if not _led(history, life):  # time in the queue, before a life that had no leader, is not the run's
        now = history[-1].t if history else 0.0
    if not restart.requeue:
        reason = f"{how}; the run may not be requeued."
    elif budgets.spent_with_current_s(now) >= restart.max_total_hours * 3600:
        reason = f"{how}; restart.max_total_hours is used up."
    elif idle <= restart.max_restarts and budgets.restarts["leader_gone"] < restart.max_restarts:
        delay_s = backoff_s(budgets.poor_attempts + alone)
        return EndDecision("requeue", f"{how}; the run is requeued.", delay_s, said=said)
    elif alone == idle:
        none = f"{said}; no agent could begin" if said else "No agent could begin"
        reason = f"{none}, {idle} times in a row."
    else:
        reason = f"{how}; {idle} attempts in a row made no progress."
    return EndDecision("fail", reason, said=said)


def _handed_back(history: list[Event], life: tuple[str | None, int]) -> Requeued | None:
    """Return the event by which this life of the job requeued the run, if it is the newest; an earlier life's does not count."""
    last = last_of(history, JobNamed)
    return last if isinstance(last, Requeued) and last.how != "continuation" and _led(history, life) else None


def _led(history: list[Event], life: tuple[str | None, int]) -> bool:
    """Return whether the newest attempt's leader belonged to this life of the job."""
    leader = last_of(history, AttemptStarted)
    return leader is not None and (leader.job_id, leader.restart_count or 0) == life


def main(argv: Sequence[str] | None = None) -> int:
    """Decide and act; returns `COMPLETED`, `JUDGED`, or 1 when the run directory cannot be read."""
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
    clock.set_from(read_state(paths.state))  # the leader was on this host, and what it has told is by its clock
    allocation = SlurmAllocation(spec, paths)
    if (grace_end := _grace_end(spec, patiently(lambda: event_lines.recall(paths.events), paths.root))) is not None:
        allocation.in_grace_until(grace_end)
    end = time.monotonic() + _FORGOTTEN_S
    while act(spec, paths, allocation, told=told):
        history = event_lines.read(paths.events)
        given = last_of(history, Requeued)
        last = allocation.last_act(_end_began(history), srun_killed=bool(given and given.let_go))
        if allocation.taken() or time.monotonic() > end:
            return _become(last)
    if spec.hold:
        from launcher.node.allocation.held_allocation import conclude_reruns

        conclude_reruns(paths, "its hold has ended")
    outcome = patiently(lambda: load_object(paths.outcome, paths.root), paths.root) or {}
    return COMPLETED if outcome.get("state") == "completed" else JUDGED


def _become(last: tuple[str, ...]) -> int:
    """Replace this process by the job's last act, a command of SLURM."""
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
    """Decide on the run's end and carry it out; the next attempt should not get the hosts ``exclude``.

    ``told``: the batch script was sent TERM. If SLURM wants nothing of the job, somebody sent it to end the job, unless this host is
    being shut down. ``said``: what the caller knows of the leader's end. Returns True when SLURM runs this job again and it should start
    soon. Raises OSError, with nothing done, when the run's folder does not answer for minutes.
    """
    history, outcome, claim = patiently(lambda: _left_behind(paths), paths.root)
    if outcome is None:
        _await_answer(allocation)
        before = claim
        history, outcome, claim = patiently(lambda: _left_behind(paths), paths.root)
        if claim != before:  # SLURM may have answered others all the while
            print("Another leader leads the run now.", file=sys.stderr)
            return False
    if _superseded(history, allocation.job_id):
        print("The run has been submitted again: another job runs it now.", file=sys.stderr)
        return False
    attempt = claim.attempt if claim is not None else 0
    allocation.withdraw_nodes()
    if outcome is not None:
        allocation.withdraw_early()
    given = last_of(history, AttemptStarted, Requeued)
    at_once = not (isinstance(given, Requeued) and given.delay_s)
    if allocation.taken():
        return at_once
    life = (allocation.job_id, allocation.restart_count)
    if outcome is not None:
        decision = EndDecision("nothing", "The run has an outcome.")
        forget_passed(paths)  # the leader may have died before it could
    else:
        mine = _handed_back(history, life) is None  # a requeue sends TERM, too
        shuts = told and is_shutting_down()  # TERM came to all processes here; srun ended its step for that
        if shuts and (host := job_environ().node_name):
            said, exclude = said or f"{host} is being shut down", exclude or (host,)
        meaning = _meaning(allocation, mine and not shuts and (told or step_cancelled(paths)))
        if mine and meaning != "unknown" and is_requested(paths):
            meaning = "cancelled"  # the leader has died while it stopped the run for that
        said = said or _words_of_end(paths, led=_led(history, life))
        decision = decide_end(spec.restart, history, life=life, meaning=meaning, now=clock.now(), said=said)
    if decision.action == "nothing":
        print(decision.reason, file=sys.stderr)
        _cancel_continuation(paths, allocation, history, attempt)
        return isinstance(given, Requeued) and given.how != "continuation" and at_once
    claims.depose(paths, attempt)  # a leader that only stood still is woken by SLURM's signals at the latest
    more = {"said": decision.said} if decision.said else {}
    tell(paths, attempt, "decision", evidence=decision.evidence, action=decision.action, reason=decision.reason, **more)
    if decision.action == "requeue":
        return _hand_back(paths, allocation, attempt, decision, exclude)
    end_run(paths, allocation, attempt, "cancelled" if decision.action == "cancel" else "failed", decision.reason)
    return False


def _words_of_end(paths: RunPaths, *, led: bool) -> str:
    """Return what the job's log says of the leader's end; ``led``: it had begun."""
    if words := leader_words(paths):
        return f"The leader {'failed' if led else 'could not begin'}: {words}"
    if not led and (words := start_words(paths)):
        return f"The leader could not begin: {words}"
    return srun_end(paths)


def _hand_back(
    paths: RunPaths, allocation: Allocation, attempt: int, decision: EndDecision, exclude: tuple[str, ...]
) -> bool:
    """Requeue the run; returns what `act` does."""
    began = clock.now()
    try:
        handed = _handed(allocation, exclude, decision.delay_s)
    except CancelledError:
        end_run(paths, allocation, attempt, "cancelled", "The job was cancelled.")
        return False
    except NotAnsweredError as error:  # it may have taken the run: this cannot be its end
        print(f"{decision.reason} SLURM does not answer: {error}", file=sys.stderr)
        return False
    except SiteError as error:
        end_run(paths, allocation, attempt, "failed", f"{decision.reason} SLURM refused: {error}")
        return False
    if exclude:
        tell(paths, attempt, "excluded", hosts=list(exclude), why="the leader on it died")
    if handed.given_up:
        tell(paths, attempt, "readmitted", hosts=list(handed.given_up), why=NEEDED)
    tell(paths, attempt, "attempt_ended", why=decision.reason)
    took = round(clock.now() - began, 2)
    tell(paths, attempt, "requeued", how=handed.how, job_id=handed.job_id, seconds=took, delay_s=decision.delay_s)
    return handed.how != "continuation" and decision.delay_s == 0


def _handed(allocation: Allocation, exclude: tuple[str, ...], delay_s: float) -> HandedBack:
    """Hand the job back; ask again while SLURM does not answer. Raises SiteError."""
    end = time.monotonic() + _UNANSWERED_S
    while True:
        try:
            return allocation.hand_back(exclude=exclude, delay_s=delay_s)
        except NotAnsweredError:
            if time.monotonic() >= end:
                raise
            time.sleep(1.0)


def _left_behind(paths: RunPaths) -> tuple[list[Event], dict[str, Any] | None, claims.Claim | None]:
    """Return history, outcome and the newest leader's claim. Raises OSError when one of them is not known."""
    outcome = load_object(paths.outcome, paths.root)
    return event_lines.recall(paths.events), outcome, claims.newest_claim(paths)


def _await_answer(allocation: Allocation) -> None:
    """Wait until SLURM answers: what slurmctld has forgotten of its last seconds is known only when it is there again."""
    end = time.monotonic() + _UNANSWERED_S
    while not allocation.answers() and time.monotonic() < end:
        time.sleep(1.0)


def _superseded(history: list[Event], job_id: str | None) -> bool:
    """Whether the run was submitted again after this job's last attempt, and its outcome set aside for that."""
    mine = False
    for e in history:
        if isinstance(e, AttemptStarted):
            mine = e.job_id == job_id
        elif isinstance(e, RunSubmitted) and mine:
            return True
    return False


def _cancel_continuation(paths: RunPaths, allocation: Allocation, history: list[Event], attempt: int) -> None:
    """Cancel this job's continuation, too, where somebody cancelled this job when that was in the queue already."""
    last = last_of(history, JobNamed, Ended)
    if not isinstance(last, Requeued) or last.how != "continuation" or last.job_id in (None, allocation.job_id):
        return
    if _meaning(allocation, told=False) == "cancelled":
        allocation.cancel(str(last.job_id))
        end_run(paths, allocation, attempt, "cancelled", "The job was cancelled.")


def _grace_end(spec: RunSpec, history: list[Event]) -> float | None:
    """Return when the grace time ends, if this life's leader was preempted with one."""
    last = last_of(history, AttemptStarted, SignalReceived)
    if not isinstance(last, SignalReceived) or last.meaning != "preempted" or last.left_s is None:
        return None
    return last.t + last.left_s - spec.site.kill_wait_s


def _end_began(history: list[Event]) -> float | None:
    """Return when SLURM began to end this life of the job, as far as the history shows."""
    attempt = max((i for i, e in enumerate(history) if isinstance(e, AttemptStarted)), default=0)
    began = [e.t - (e.seconds or 0.0) for e in history[attempt:] if isinstance(e, Requeued)]
    began += [e.t for e in history[attempt:] if isinstance(e, SignalReceived) and e.meaning == "preempted_now"]
    return min(began, default=None)


def _meaning(allocation: Allocation, told: bool) -> str:
    """Ask SLURM what happened to the job, as if TERM had come now."""
    if allocation.cancelled():
        return "cancelled"
    said = allocation.meaning("TERM").kind
    if said == "terminated":  # a running job without a reason of SLURM's for a signal
        return "cancelled" if told else "running"
    return "running" if said == "unknown" and allocation.answers() else said


def _lives_without_attempt(history: list[Event], life: tuple[str | None, int]) -> int:
    """Count the last starts of this job, this one included, in which no leader came so far as to begin an attempt.

    Starts that SLURM preempted before an agent could begin do not count: they say nothing of the run.
    """
    job_id, restart_count = life
    newest = max(
        (i for i, e in enumerate(history) if isinstance(e, AttemptStarted) and e.job_id == job_id), default=None
    )
    if newest is None:
        led, since = -1, history
    else:
        led, since = getattr(history[newest], "restart_count", None) or 0, history[newest:]
    # Decisions of a leader have the row of its table.
    preempted = sum(isinstance(e, Decided) and e.evidence == "preempted" and e.row is None for e in since)
    return max(0, restart_count - led - preempted)


if __name__ == "__main__":
    sys.exit(main())
