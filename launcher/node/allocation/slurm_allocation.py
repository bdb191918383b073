"""The allocation as SLURM's: why it signals, and how the run starts again. Blocking; the leader calls it in threads."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from launcher.errors import SiteError
from launcher.node.allocation.allocation import Allocation, CancelledError, HandedBack, NotAnsweredError, SignalMeaning
from launcher.node.allocation.early_exits import leader_end, read_ended, step_cancelled
from launcher.node.allocation.exclusions import choose_excluded
from launcher.node.allocation.job_processes import end_srun, life_s
from launcher.node.allocation.step_end import end_steps
from launcher.run import clock
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.run.state import is_requested
from launcher.slurm import handback, later_jobs
from launcher.slurm.commands import ask
from launcher.slurm.environ import job_environ
from launcher.slurm.jobs import JobFacts, controller_time, job_facts
from launcher.slurm.meaning import Meaning, meaning_of
from launcher.slurm.restart import NET_LEAD_S, last_act

_ASK_S = 5.0
_WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD")
"""States of a job that is to run (again), and of which no process is left."""
_SLURM_AWAY_S = 600.0
"""slurmctld may be restarting: it is asked again for so long to end a job that nobody else would end."""
_LEAST_MIN = 5
"""A node for less time is not worth a job."""
_EARLY_S = 2.0
"""SLURM counts seconds, and looks at grace times late, never early."""


class SlurmAllocation(Allocation):
    """This process's SLURM job (or array element)."""

    requeues = True

    def __init__(
        self, spec: RunSpec, paths: RunPaths, environ: Mapping[str, str] = os.environ, *, least_lead_s: int = 0
    ) -> None:
        """``least_lead_s``: StartTime is never set nearer than this, since the job's end takes so long."""
        self._least_lead_s = least_lead_s
        self._spec = spec
        self._paths = paths
        self._environ = environ
        self._job = job_environ(environ)
        self.job_id = self._job.own_id or None
        self.restart_count = self._job.restart_count
        self._slurm_requeues = False
        self._grace_end: float | None = None
        self._let_go = False
        self._began_up_s = clock.up_s() - life_s(environ)

    def facts(self) -> JobFacts | None:
        """Return what SLURM says of the job now; None when it does not answer. Never raises.

        A slurmctld that was killed when it had just started the job again comes back with its record of the life before: a job
        that is being ended, though this life runs. That is no answer.
        """
        facts = job_facts(self._job.own_id, timeout_s=_ASK_S)
        if facts is None or facts.state in (*handback.RUNNING, *_WAITING):
            return facts
        if facts.ahead:  # that life is ending, and then this one is to begin, if its number is this one's
            is_old = facts.restarts is not None and facts.restarts <= self.restart_count
        else:
            is_old = facts.end_t is not None and facts.end_t < _slurm_now() - (clock.up_s() - self._began_up_s) - 1
        return None if is_old else facts

    def meaning(self, signal: str) -> SignalMeaning:
        """See `Allocation`; a SLURM that does not answer at once is asked again for some seconds."""
        end = time.monotonic() + _ASK_S
        while (facts := self.facts()) is None and time.monotonic() < end:
            time.sleep(0.3)
        said = self._understood(facts, signal)
        if said.kind in ("preempted", "user") and said.left_s is not None:
            self.in_grace_until(clock.now() + said.left_s)
        left = None if said.left_s is None else said.left_s + self._spec.site.kill_wait_s
        return SignalMeaning(said.kind, left)

    def _understood(self, facts: JobFacts | None, signal: str) -> Meaning:
        said = meaning_of(
            facts,
            signal,
            restart_count=self.restart_count,
            now=0.0 if facts is None or _is_ended(facts) else _slurm_now(),  # of a running job alone the end lies ahead
            lead_s=float(self._spec.restart.signal_lead_s),
            requested=is_requested(self._paths),
        )
        self._slurm_requeues = self._slurm_requeues or said.slurm_requeues
        early = self._grace_end is not None and clock.now() < self._grace_end - _EARLY_S
        if early and not said.slurm_requeues and said.kind in ("preempted_now", "unknown") and _is_ended(facts):
            # A cancel in the very second in which the grace began looks like the grace's end (`launcher.slurm.meaning`).
            return replace(said, kind="cancelled")
        return said

    def in_grace_until(self, t: float) -> None:
        """Note that the job is being preempted at ``t`` of `launcher.run.clock`: whoever ends it sooner cancels it."""
        self._grace_end = t

    def answers(self) -> bool:
        """See `Allocation`."""
        return self.facts() is not None

    def taken(self) -> bool:
        """See `Allocation`."""
        facts = self.facts()
        return facts is not None and facts.restarts is not None and facts.restarts > self.restart_count

    def cancelled(self) -> bool:
        """See `Allocation`."""
        return self._is_cancelled(self.facts())

    def _is_cancelled(self, facts: JobFacts | None) -> bool:
        return _is_ended(facts) and self._understood(facts, "TERM").kind == "cancelled"

    def ended_tasks(self) -> dict[str, str]:
        """See `Allocation`: srun's messages."""
        return read_ended(self._paths, self._environ)

    def step_cancelled(self) -> bool:
        """See `Allocation`: slurmstepd's message."""
        return step_cancelled(self._paths)

    def leader_end(self) -> str:
        """See `Allocation`."""
        return leader_end(self._paths)

    def queue_early(self) -> str:
        """See `Allocation`: a continuation that is held, and that `_continue` finds."""
        own = self._job
        if own.array_task_id is not None:
            raise SiteError("it is an element of an array")
        if (awaited := self._is_awaited()) is None:
            raise NotAnsweredError("SLURM does not answer")
        if awaited:
            raise SiteError("other jobs wait for this one")
        script = str(self._paths.sbatch)
        done = later_jobs.submit_continuation(
            script, own.own_id, name=own.job_name, environ=self._environ, extra=["--hold"]
        )
        if not done.ok:
            raise (SiteError if done.forbidden else NotAnsweredError)(done.why)
        _copy_pickle(self._paths.submitit, own.own_id, done.job_id)
        return done.job_id

    def withdraw_early(self) -> None:
        """See `Allocation`."""
        if self._spec.restart.queue_early:
            later_jobs.cancel_held(self._job.job_name, besides=self._job.own_id)

    def hand_back(
        self,
        *,
        exclude: tuple[str, ...],
        delay_s: float,
        early: bool = False,
        nodes: tuple[int, int] | None = None,
    ) -> HandedBack:
        """See `Allocation`: requeue; a continuation job where SLURM says that it never requeues this one."""
        own = self._job.own_id
        if early and later_jobs.queued_after(own, self._job.job_name):
            awaited = self._is_awaited()
            if awaited is False:
                return self._continue(exclude, delay_s, nodes)
            if awaited:
                self.withdraw_early()
        if self._slurm_requeues or self._spec.site.requeue_allowed:
            done = handback.requeue(own, restart_count=self.restart_count)
            if done.ended:
                self._require_not_cancelled()  # its grace or time may be over
                done = handback.requeue(own, restart_count=self.restart_count, ended=True)
            if done.ok:
                if nodes is not None:
                    handback.set_nodes(own, *nodes)
                chosen, given_up = self._chosen(exclude, nodes)
                if chosen is not None:
                    handback.exclude(own, chosen)
                if delay_s > 0:
                    handback.pull_forward(own, max(2, int(delay_s)))
                return HandedBack("slurm" if self._slurm_requeues else "requeue", own, given_up)
            if not done.forbidden:  # it may have taken or not: a continuation could be a second life of the run
                raise NotAnsweredError(f"scontrol requeue: {done.why}")
        return self._continue(exclude, delay_s, nodes)

    def _require_not_cancelled(self) -> None:
        """Raise CancelledError, and NotAnsweredError where that is not known: a cancelled run must not come back."""
        if (facts := self.facts()) is None:
            raise NotAnsweredError("it is not known whether the job was cancelled")
        if self._is_cancelled(facts):
            raise CancelledError("the job was cancelled in the meantime")

    def _is_awaited(self, *, freed: bool = False) -> bool | None:
        """Whether a job of another run waits for this one; ``freed``: once this user's jobs have been freed. None: not known."""
        own = self._job
        if freed:
            later_jobs.free_dependents(own.own_id)
        return later_jobs.is_awaited(own.job_id, own.array_job_id or own.job_id, besides=own.job_name)

    def let_go(self, hosts: tuple[str, ...]) -> tuple[str, ...]:
        """See `Allocation`."""
        done = handback.let_go(self._job.own_id, hosts)
        self._let_go = done.ok
        if not done.ok:
            print(f"SLURM did not release {', '.join(hosts)}: {done.why}", file=sys.stderr, flush=True)
        return hosts if done.ok else ()

    def _chosen(
        self, hosts: tuple[str, ...], nodes: tuple[int, int] | None
    ) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
        return choose_excluded(hosts, nodes, job=self._job, spec=self._spec, paths=self._paths, environ=self._environ)

    def _continue(self, exclude: tuple[str, ...], delay_s: float, nodes: tuple[int, int] | None) -> HandedBack:
        chosen, given_up = self._chosen(exclude, nodes)
        extra = [] if chosen is None else [f"--exclude={','.join(chosen)}"]  # in place of the script's own
        if delay_s > 0:
            extra.append(f"--begin=now+{int(delay_s)}")
        if nodes is not None:
            extra.append(f"--nodes={nodes[0]}-{nodes[1]}")
        if (task := self._job.array_task_id) is not None:
            extra.append(f"--array={task}")
        handback.forbid_requeue(self._job.own_id)  # from 24.05 on SLURM may requeue a job that leaves in its grace time
        # The job it continues is this one alone, not the array: its last element's plain id names them all.
        done = later_jobs.submit_continuation(
            str(self._paths.sbatch), self._job.own_id, name=self._job.job_name, environ=self._environ, extra=extra
        )
        if not done.ok and not done.forbidden:
            raise NotAnsweredError(f"sbatch: {done.why}")
        if not done.ok:
            raise SiteError(f"this cluster forbids requeueing, and sbatch refused a continuation job: {done.why}")
        new = done.job_id if task is None else f"{done.job_id}_{task}"
        if self._spec.restart.queue_early:  # it may have been queued before
            if nodes is not None:
                handback.set_nodes(new, *nodes)
            if chosen is not None:
                handback.exclude(new, chosen)
            if delay_s > 0:
                handback.pull_forward(new, int(delay_s))
        _copy_pickle(self._paths.submitit, self._job.own_id, new)
        try:
            self._require_not_cancelled()
        except CancelledError:
            if not (done := handback.cancel(new)).ok:
                raise NotAnsweredError(f"scancel of the continuation job: {done.why}") from None
            raise
        later_jobs.move_dependents(self._job.own_id, new)
        held = self._spec.restart.queue_early or later_jobs.is_held(str(self._paths.sbatch))
        if held and not (done := later_jobs.release(new)).ok:
            if done.forbidden:  # an administrator holds it
                handback.cancel(new)
                raise SiteError(f"scontrol release of the continuation job: {done.why}")
            raise NotAnsweredError(f"scontrol release: {done.why}")
        return HandedBack("continuation", new, given_up)

    def ask_for_node(self, words: tuple[str, ...], *, exclude: tuple[str, ...]) -> str:
        """See `Allocation`: the job's own script, which runs an agent where it is given words."""
        facts, own = self.facts(), self._job
        if facts is None or facts.end_t is None:
            raise SiteError("SLURM does not say how much time is left")
        minutes = int((facts.end_t - _slurm_now()) // 60)
        if minutes < _LEAST_MIN:
            raise SiteError(f"only {max(0, minutes)} min are left")
        if not (wishes := handback.wishes(own.own_id)):
            raise SiteError("SLURM does not say where the job may run")
        extra = [f"--{name}={value}" for name, value in wishes.items() if name not in ("nodelist", "exclude")]
        extra.append(f"--dependency=after:{own.own_id}")  # in place of the script's own
        if own.array_task_id is not None:
            extra.append(f"--array={own.array_task_id}")
        users = handback.excluded(wishes)
        done = later_jobs.submit_replacement(
            str(self._paths.sbatch), words, name=self._spec.replacement_name, minutes=minutes,
            exclude=tuple(dict.fromkeys((*users, *exclude))), extra=extra, environ=self._environ,
        )  # fmt: skip
        if not done.ok:
            raise SiteError(done.why)
        if later_jobs.is_held(str(self._paths.sbatch)):
            later_jobs.release(done.job_id)
        return done.job_id

    def time_left_s(self, job_id: str, signal: str) -> float | None:
        """See `Allocation`."""
        facts = job_facts(job_id, timeout_s=_ASK_S)
        lead_s = float(self._spec.restart.signal_lead_s)
        said = meaning_of(facts, signal, restart_count=0, now=_slurm_now(), lead_s=lead_s, requested=False)
        return None if said.left_s is None else said.left_s + self._spec.site.kill_wait_s

    def is_coming(self, job_id: str) -> bool:
        """See `Allocation`."""
        answer = ask("squeue", "--noheader", f"--jobs={job_id}", "--format=%T", timeout_s=_ASK_S)
        return bool(answer.out.strip()) if answer.ok else "Invalid job id" not in answer.err

    def withdraw_nodes(self, *, pending: bool = False) -> None:
        """See `Allocation`."""
        if self._spec.replace:
            later_jobs.cancel_named(self._spec.replacement_name, pending=pending)

    def pull_forward(self) -> None:
        """See `Allocation`."""
        if self._let_go:
            # srun would wait KillWait + 2 s for hosts that do not answer, and slurmd kills the batch script then.
            end_srun({**self._environ, "SLURM_JOB_ID": self._job.job_id})
        lead_s = max(NET_LEAD_S, self._least_lead_s)
        done = handback.pull_forward(self._job.own_id, lead_s)
        if not done.ok:
            print(f"SLURM did not set an earlier StartTime: {done.why}", file=sys.stderr, flush=True)

    def ends_slowly(self, seconds: int) -> None:
        """Keep the job from starting before its slowest process has ended, ``seconds`` after KillWait."""
        self._least_lead_s = max(self._least_lead_s, self._spec.site.kill_wait_s + seconds)

    def last_act(self, requeued_t: float | None, *, srun_killed: bool) -> tuple[str, ...]:
        """See `Allocation`."""
        own, epilog = self._job, self._spec.site.has_epilog
        if not handback.may_update(own.own_id):
            return ("true",)
        return last_act(
            own.own_id, own_host=own.node_name, requeued_t=requeued_t, has_epilog=epilog, srun_killed=srun_killed
        )

    def forbid_requeue(self) -> None:
        """See `Allocation`."""
        handback.forbid_requeue(self._job.own_id)
        if self._slurm_requeues:  # it has decided to run the job again: only a cancel takes that back
            handback.cancel(self._job.own_id)

    def run_completed(self) -> None:
        """See `Allocation`.

        Since 24.05 the end of a job that was once in a grace time counts as its preemption (measured on 24.11.5: also of one that has
        been requeued since). No `afterok` starts on that: the user's own jobs need not wait, for others SLURM may queue it again.
        """
        if (self.restart_count > 0 or self._grace_end is not None) and self._is_awaited(freed=True) is False:
            handback.forbid_requeue(self._job.own_id)

    def end_job(self, *, completed: bool) -> bool:
        """End a job whose batch host is gone: SLURM would keep it, without a batch script, to its time limit. Never raises.

        Where jobs of others wait for the success of a run that has ``completed``, it is requeued for one node instead: the batch script
        then finds that the run is over, and ends the job with 0. Returns whether it was requeued.
        """
        own = self._job
        awaited = completed and self._is_awaited(freed=True) is not False
        if (
            awaited
            and handback.allow_requeue(own.own_id).ok
            and handback.requeue(own.own_id, restart_count=self.restart_count).ok
        ):
            handback.ask_for_one_cpu(own.own_id)
            return True
        end = time.monotonic() + _SLURM_AWAY_S
        while not (done := handback.cancel(own.own_id)).ok and time.monotonic() < end:
            time.sleep(1.0)
        if not done.ok:
            print(f"SLURM did not end the job: {done.why}", file=sys.stderr, flush=True)
        return False

    def remark(self, text: str) -> None:
        """See `Allocation`."""
        handback.remark(self._job.own_id, text)

    def cancel(self, job_id: str) -> None:
        """See `Allocation`."""
        handback.cancel(job_id)

    def end_step(self) -> None:
        """See `Allocation`."""
        end_steps(self._environ, self._job, lambda: _is_ended(self.facts()))


def _slurm_now() -> float:
    """Return the time by slurmctld's clock, the only one its times may be compared with; where unknown, by this process's."""
    said = controller_time(timeout_s=_ASK_S)
    return clock.now() if said is None else said


def _is_ended(facts: JobFacts | None) -> bool:
    return facts is not None and facts.state not in handback.RUNNING


def _copy_pickle(folder: Path, old: str, new: str) -> None:
    """Copy what submitit wrote: it looks for the work under the job's own id."""
    target = folder / f"{new}_submitted.pkl"
    try:
        os.replace(shutil.copyfile(folder / f"{old}_submitted.pkl", target.with_suffix(".tmp")), target)
    except OSError as error:
        raise SiteError(f"the continuation job's work could not be copied for submitit: {error}") from error
