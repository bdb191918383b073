"""The allocation as SLURM's: why it signals, and how the run starts again. Blocking; the leader calls it in threads."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from launcher.errors import SiteError
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.runtime.handover import CancelledError, HandedBack, Meaning, NotAnsweredError
from launcher.slurm import handback
from launcher.slurm.commands import ask
from launcher.slurm.environ import job_environ
from launcher.slurm.jobs import JobFacts, job_facts
from launcher.slurm.meaning import meaning_of

__all__ = ["SlurmAllocation", "schedulable_without"]

_ASK_S = 5.0
_EPILOG_LEAD_S = 6
"""An epilog runs after the last process and must be over before StartTime, or SLURM sets the full delay."""
_GONE = ("down", "drain", "drng", "fail", "unk", "maint", "boot", "inval", "planned_down")


class SlurmAllocation:
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
        self.job_id: str | None = self._job.own_id or None
        self.restart_count = self._job.restart_count
        self._slurm_requeues = False

    def facts(self) -> JobFacts | None:
        """What SLURM says of the job now; None when it does not answer. Never raises."""
        return job_facts(self._job.own_id, timeout_s=_ASK_S)

    def meaning(self, signal: str) -> Meaning:
        """See `Allocation`; a SLURM that does not answer at once is asked again for some seconds."""
        end = time.monotonic() + _ASK_S
        facts = self.facts()
        while facts is None and time.monotonic() < end:
            time.sleep(0.3)
            facts = self.facts()
        said = meaning_of(
            facts,
            signal,
            restart_count=self.restart_count,
            now=time.time(),
            lead_s=float(self._spec.restart.signal_lead_s),
            requested=self._paths.request.exists(),
        )
        self._slurm_requeues = self._slurm_requeues or said.slurm_requeues
        left = None if said.left_s is None else said.left_s + self._spec.site.kill_wait_s
        return Meaning(said.kind, left)

    def answers(self) -> bool:
        """See `Allocation`."""
        return self.facts() is not None

    def taken(self) -> bool:
        """See `Allocation`."""
        facts = self.facts()
        return facts is not None and facts.restarts is not None and facts.restarts > self.restart_count

    def cancelled(self) -> bool:
        """See `Allocation`."""
        facts = self.facts()
        if facts is None or facts.state in handback.RUNNING:
            return False
        said = meaning_of(facts, "TERM", restart_count=self.restart_count, now=time.time(), lead_s=0.0)
        self._slurm_requeues = self._slurm_requeues or said.slurm_requeues
        return said.kind == "cancelled"

    def hand_back(self, *, exclude: tuple[str, ...], delay_s: float) -> HandedBack:
        """See `Allocation`: requeue; a continuation job where SLURM says that it never requeues this one."""
        own = self._job.own_id
        if self._slurm_requeues or self._spec.site.requeue_allowed:
            done = handback.requeue(own, restart_count=self.restart_count)
            if done.ended:
                self._refuse_cancelled()
                done = handback.requeue(own, restart_count=self.restart_count)  # its grace or time was over meanwhile
            if done.ok:
                self._exclude(exclude)
                if delay_s > 0:
                    handback.pull_forward(own, max(2, int(delay_s)))
                return HandedBack("slurm" if self._slurm_requeues else "requeue", own)
            if not done.forbidden:  # it may have taken or not: a continuation could be a second life of the run
                raise NotAnsweredError(f"scontrol requeue: {done.why}")
        return self._continue(exclude, delay_s)

    def _refuse_cancelled(self) -> None:
        if self.cancelled():
            raise CancelledError("it was cancelled meanwhile")

    def _exclude(self, hosts: tuple[str, ...]) -> None:
        if hosts and self._schedulable_without(hosts):
            handback.exclude(self._job.own_id, hosts)

    def _schedulable_without(self, hosts: tuple[str, ...]) -> bool:
        partition = [f"--partition={self._job.partition}"] if self._job.partition else []
        answer = ask("sinfo", "--noheader", "--Node", *partition, "--format=%N %t", timeout_s=_ASK_S)
        return answer.ok and schedulable_without(answer.out, hosts, self._spec.nodes + self._spec.spare_nodes)

    def _continue(self, exclude: tuple[str, ...], delay_s: float) -> HandedBack:
        extra = []
        if exclude and self._schedulable_without(exclude):
            extra.append(f"--exclude={','.join(exclude)}")
        if delay_s > 0:
            extra.append(f"--begin=now+{int(delay_s)}")
        task = self._job.array_task_id
        if task is not None:
            extra.append(f"--array={task}")
        # The job it continues is this one alone, not the array: its last element's plain id names them all.
        done = handback.continuation(str(self._paths.sbatch), self._job.own_id, environ=self._environ, extra=extra)
        if not done.ok:
            raise SiteError(f"requeueing is forbidden here, and sbatch did not take a continuation: {done.why}")
        new = done.job_id if task is None else f"{done.job_id}_{task}"
        try:
            self._refuse_cancelled()  # asked before, too; but a scancel may have come in between
        except CancelledError:
            handback.cancel(new)
            raise
        handback.move_dependents(self._job.own_id, new)
        _copy_pickle(self._paths.submitit, self._job.own_id, new)
        return HandedBack("continuation", new)

    def pull_forward(self) -> None:
        """See `Allocation`."""
        lead = _EPILOG_LEAD_S if self._spec.site.has_epilog else handback.START_LEAD_S
        done = handback.pull_forward(self._job.own_id, max(lead, self._least_lead_s))
        if not done.ok:
            print(f"StartTime could not be pulled forward: {done.why}", file=sys.stderr, flush=True)

    def ends_slowly(self, seconds: int) -> None:
        """Some process of the job ends by SLURM's KILL alone, that long after KillWait: it must not start before."""
        self._least_lead_s = max(self._least_lead_s, self._spec.site.kill_wait_s + seconds)

    def forbid_requeue(self) -> None:
        """See `Allocation`."""
        handback.forbid_requeue(self._job.own_id)
        if self._slurm_requeues:  # it has decided to run the job again: only a cancel takes that back
            handback.cancel(self._job.own_id)

    def end_step(self) -> None:
        """See `Allocation`."""
        step = self._environ.get("SLURM_STEP_ID", "")
        if step.isdigit():
            ask("scancel", "--signal=KILL", f"{self._job.own_id}.{step}", timeout_s=_ASK_S)


def schedulable_without(sinfo: str, hosts: tuple[str, ...], needed: int) -> bool:
    """Whether ``needed`` usable hosts are left in ``sinfo -N -o "%N %t"`` without ``hosts``. Pure."""
    usable = set()
    for line in sinfo.splitlines():
        name, _, state = line.strip().partition(" ")
        if name and not state.lower().startswith(_GONE):
            usable.add(name)
    return len(usable - set(hosts)) >= needed


def _copy_pickle(folder: Path, old: str, new: str) -> None:
    """submitit looks for the work under the job's own id."""
    source, target = folder / f"{old}_submitted.pkl", folder / f"{new}_submitted.pkl"
    try:
        tmp = target.with_suffix(".tmp")
        shutil.copyfile(source, tmp)
        os.replace(tmp, target)
    except OSError as error:
        raise SiteError(f"the continuation's work could not be put in place: {error}") from error
