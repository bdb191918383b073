"""What the leader asks of whoever gave it the nodes, and how it gives them back. Blocking calls; run in threads."""

from __future__ import annotations

import os
from typing import Protocol

from launcher.errors import SiteError
from launcher.frozen import frozen
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.run.state import is_requested

__all__ = [
    "NEEDED",
    "Allocation",
    "CancelledError",
    "HandedBack",
    "LocalAllocation",
    "Meaning",
    "NotAnsweredError",
    "usable_s",
    "window_s",
]

NEEDED = "SLURM could not start the job otherwise"
"""Why hosts that were to be excluded are not."""
_RESERVE_S = 3.0
"""Kept back of every warning time for requeueing and leaving."""


class NotAnsweredError(SiteError):
    """SLURM does not answer: whether it has taken the job back is not known."""


class CancelledError(SiteError):
    """Somebody cancelled the job while it was being handed back."""


@frozen
class Meaning:
    """Why a signal came."""

    kind: str
    """As `launcher.slurm.meaning.Meaning.kind`."""
    left_s: float | None = None
    """Seconds until the processes are killed, where it is known better than from the site's settings."""


@frozen
class HandedBack:
    """How the allocation was given back."""

    how: str
    """"requeue" (same job id), "continuation" (another job) or "slurm" (it requeues by itself)."""
    job_id: str | None = None
    given_up: tuple[str, ...] = ()
    """Hosts that were to be excluded, and without which SLURM could not start the run."""


class Allocation(Protocol):
    """SLURM, or nobody."""

    @property
    def job_id(self) -> str | None:
        """SLURM's job id."""

    @property
    def restart_count(self) -> int:
        """SLURM_RESTART_COUNT."""

    @property
    def requeues(self) -> bool:
        """It can start the run again."""

    def meaning(self, signal: str) -> Meaning:
        """Why ``signal`` came; never raises."""

    def answers(self) -> bool:
        """SLURM says something of this job."""

    def taken(self) -> bool:
        """It will run the job again, whoever asked for that; never raises."""

    def cancelled(self) -> bool:
        """Somebody has cancelled the job; never raises."""

    def let_go(self, hosts: tuple[str, ...]) -> tuple[str, ...]:
        """Give back hosts that do not answer, whose end would be waited for; those that are, never raises."""

    def ended_tasks(self) -> dict[str, str]:
        """Nodes whose agents have ended, and how, as far as is known without them; never raises."""

    def hand_back(self, *, exclude: tuple[str, ...], delay_s: float) -> HandedBack:
        """Have the run start again, without ``exclude`` where that is possible, verified.

        Raises SiteError when SLURM refuses, NotAnsweredError when it does not answer, CancelledError when the job was
        cancelled meanwhile.
        """

    def pull_forward(self) -> None:
        """Have the requeued job start some seconds after this process has ended; never raises."""

    def last_act(self, requeued_t: float | None, *, srun_killed: bool) -> tuple[str, ...]:
        """Have the requeued job start as soon as this process, the job's last one, has ended; never raises.

        Returns the command that this process must become, () when there is none. ``requeued_t`` is when the end of the
        job began, ``srun_killed`` whether srun did not live to see its step end.
        """

    def forbid_requeue(self) -> None:
        """See that nothing brings the job back; never raises."""

    def remark(self, text: str) -> None:
        """Note ``text`` on the job, where SLURM's commands show it; never raises."""

    def cancel(self, job_id: str) -> None:
        """Cancel another job of this run; never raises."""

    def end_step(self) -> None:
        """End every process of the job's step, this one included; the very last act; never raises."""


class LocalAllocation:
    """No SLURM: this machine, until the run ends."""

    job_id: str | None = None
    restart_count = 0
    requeues = False

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self.job_id = os.environ.get("SUBMITIT_LOCAL_JOB_ID")

    def meaning(self, signal: str) -> Meaning:
        """TERM is a cancel here: nobody else sends it."""
        if signal == "USR2":
            return Meaning("user" if is_requested(self._paths) else "nothing")
        return Meaning("user" if is_requested(self._paths) else "cancelled")

    def answers(self) -> bool:
        """There is nobody to ask."""
        return False

    def taken(self) -> bool:
        """There is nobody to take it."""
        return False

    def cancelled(self) -> bool:
        """Only signals tell."""
        return False

    def let_go(self, hosts: tuple[str, ...]) -> tuple[str, ...]:
        """Nothing to do."""
        return ()

    def ended_tasks(self) -> dict[str, str]:
        """Nobody tells."""
        return {}

    def hand_back(self, *, exclude: tuple[str, ...], delay_s: float) -> HandedBack:
        """There is nobody to give it back to."""
        raise SiteError("There is no SLURM here to start the run again.")

    def pull_forward(self) -> None:
        """Nothing to do."""

    def last_act(self, requeued_t: float | None, *, srun_killed: bool) -> tuple[str, ...]:
        """Nothing to do."""
        return ()

    def forbid_requeue(self) -> None:
        """Nothing to do."""

    def remark(self, text: str) -> None:
        """Nobody shows it."""

    def cancel(self, job_id: str) -> None:
        """There are no jobs."""

    def end_step(self) -> None:
        """Nothing to do: the user's own processes are on the user's own machine."""


def window_s(kind: str, spec: RunSpec, left_s: float | None = None) -> float | None:
    """Seconds from the signal until the stop must be complete; None: no hurry.

    Preemption with grace: TERM at the beginning of GraceTime, TERM again at its end, KILL KillWait later.
    """
    site = spec.site
    if kind in ("user", "terminated", "idle") and left_s is None:
        return None
    whole = {
        "preempted": float(site.grace_s + site.kill_wait_s),
        "time_limit": float(spec.restart.signal_lead_s),
    }.get(kind, float(site.kill_wait_s))
    if left_s is not None:
        whole = left_s
    return usable_s(whole)


def usable_s(warning_s: float) -> float:
    """Seconds of a warning that saving may take: the rest is for requeueing and leaving."""
    return max(0.5, warning_s - min(_RESERVE_S, 0.25 * warning_s))
