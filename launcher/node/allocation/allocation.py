"""What the leader asks of the system that lent it the nodes, and how it gives them back. Blocking calls; run in threads."""

from __future__ import annotations

import os

from launcher.errors import SiteError
from launcher.frozen import frozen
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.run.state import is_requested

NEEDED = "SLURM could not start the job otherwise"
"""Why hosts that were to be excluded are not."""
_RESERVE_S = 3.0
"""Kept back of every warning time for requeueing and leaving."""


class NotAnsweredError(SiteError):
    """SLURM does not answer: whether it has taken the job back is not known."""


class CancelledError(SiteError):
    """Somebody cancelled the job while it was being handed back."""


@frozen
class SignalMeaning:
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


class Allocation:
    """The nodes of this run. This class is the one without SLURM: the user's own machine, until the run ends."""

    job_id: str | None
    """SLURM's job id."""
    restart_count = 0
    """SLURM_RESTART_COUNT."""
    requeues = False
    """Whether the run can be started again."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self.job_id = os.environ.get("SUBMITIT_LOCAL_JOB_ID")

    def meaning(self, signal: str) -> SignalMeaning:
        """Return why ``signal`` came; never raises. Without SLURM only a user sends TERM: a cancel."""
        otherwise = "nothing" if signal == "USR2" else "cancelled"
        return SignalMeaning("user" if is_requested(self._paths) else otherwise)

    def answers(self) -> bool:
        """Whether SLURM answers a question about this job."""
        return False

    def taken(self) -> bool:
        """Whether SLURM will run the job again, whoever asked for that; never raises."""
        return False

    def cancelled(self) -> bool:
        """Whether somebody has cancelled the job; never raises."""
        return False

    def let_go(self, hosts: tuple[str, ...]) -> tuple[str, ...]:
        """Release hosts that do not answer, so that nobody waits for their end; return those released. Never raises."""
        return ()

    def ended_tasks(self) -> dict[str, str]:
        """Return the nodes whose agents have ended, and how, as far as SLURM reports it; never raises."""
        return {}

    def step_cancelled(self) -> bool:
        """Whether somebody has cancelled the step of the leader's node; never raises."""
        return False

    def leader_end(self) -> str:
        """Return how the leader before this one ended: a sentence without a full stop, "" where that is not known. Never raises."""
        return ""

    def queue_early(self) -> str:
        """Queue the job of the next attempt, held; return its id. Raises SiteError where that cannot be, with the reason."""
        raise SiteError("There is no SLURM here to queue a job.")

    def withdraw_early(self) -> None:
        """Cancel the job of `queue_early`, if there is one that is held; never raises."""

    def hand_back(
        self,
        *,
        exclude: tuple[str, ...],
        delay_s: float,
        early: bool = False,
        nodes: tuple[int, int] | None = None,
    ) -> HandedBack:
        """Have the run start again, without ``exclude`` where that is possible, and verify that it will.

        ``early``: in the job of `queue_early`, which is released for that, unless others wait for this one. ``nodes``: on so
        many, at least and at most, whatever it took before.

        Raises SiteError when SLURM refuses, NotAnsweredError when it does not answer, CancelledError when the job was
        cancelled meanwhile.
        """
        raise SiteError("There is no SLURM here to start the run again.")

    def ask_for_node(self, words: tuple[str, ...], *, exclude: tuple[str, ...]) -> str:
        """Submit a job of one node, none of ``exclude``, that runs an agent with these arguments (``words``); return its id.

        Raises SiteError when SLURM refuses or does not answer, or when too little time is left.
        """
        raise SiteError("There is no SLURM here to ask for a node.")

    def time_left_s(self, job_id: str, signal: str) -> float | None:
        """Return how long a job of `ask_for_node` that got ``signal`` has until SIGKILL; None where SLURM does not say. Never raises."""
        return None

    def is_coming(self, job_id: str) -> bool:
        """Whether a job of `ask_for_node` waits or runs; True where SLURM does not say. Never raises."""
        return False

    def withdraw_nodes(self, *, pending: bool = False) -> None:
        """Cancel the jobs that `ask_for_node` has submitted, of every life of the run; ``pending``: those that wait. Never raises."""

    def pull_forward(self) -> None:
        """Have the requeued job start some seconds after this process has ended; never raises."""

    def last_act(self, requeued_t: float | None, *, srun_killed: bool) -> tuple[str, ...]:
        """Have the requeued job start as soon as this process, the job's last one, has ended; never raises.

        Returns the command that this process must become, () when there is none. ``requeued_t`` is when the end of the
        job began. ``srun_killed``: srun was killed before it saw its step end.
        """
        return ()

    def forbid_requeue(self) -> None:
        """Make sure that SLURM does not start the job again; never raises."""

    def run_completed(self) -> None:
        """Keep a job whose run has completed from starting once more, where nobody waits for its success; never raises."""

    def remark(self, text: str) -> None:
        """Write ``text`` into the job's comment, where SLURM's commands show it; never raises."""

    def cancel(self, job_id: str) -> None:
        """Cancel another job of this run; never raises."""

    def end_step(self) -> None:
        """End every process of the job's step, this one included: the last call of all. Never raises."""


def window_s(kind: str, spec: RunSpec, left_s: float | None = None) -> float | None:
    """Return the seconds from the signal until the stop must be complete; None: no limit.

    Preemption with grace: TERM at the beginning of GraceTime, TERM again at its end, KILL KillWait later.
    """
    if left_s is None and kind in ("user", "terminated", "idle"):
        return None
    site = spec.site
    known = {"preempted": site.grace_s + site.kill_wait_s, "time_limit": spec.restart.signal_lead_s}
    return usable_s(float(known.get(kind, site.kill_wait_s)) if left_s is None else left_s)


def usable_s(warning_s: float) -> float:
    """Return the seconds of a warning that saving may take: the rest is for requeueing and leaving."""
    return max(0.5, warning_s - min(_RESERVE_S, 0.25 * warning_s))
