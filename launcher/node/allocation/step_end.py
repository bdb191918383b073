"""The leader's last act where its step would not end by itself: an agent of it is lost and cannot end, or never began."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from launcher.node.allocation.job_processes import end_srun
from launcher.run.units import whole_number
from launcher.slurm.commands import ask
from launcher.slurm.environ import JobEnviron

_SCRIPT_S = 15.0
"""The batch script ends well within it once its srun is killed."""
_EXIT_S = 2.0
"""Agents that have closed their connections have ended well within it."""


def end_steps(environ: Mapping[str, str], job: JobEnviron, is_ended: Callable[[], bool]) -> None:
    """End every process of the leader's step, and of the batch script's. Outside a step does nothing. Never raises.

    ``is_ended``: whether SLURM ends the job. A step is killed only where it does not within some seconds: if its tasks end at that moment,
    SLURM before 25.05.1 may wait for it for UnkillableStepTimeout and drain its host then (step_terminate_monitor.c).
    """
    own = environ.get("SLURM_STEP_ID", "")
    if whole_number(own) is None:
        return
    # srun would wait for a host that does not answer until SLURM drops it (SlurmdTimeout), and was seen to wait for ever where
    # the one came together with the other (22.05). Its end ends the batch script, and that the job, with all that is left of it.
    had_srun = end_srun({**environ, "SLURM_JOB_ID": job.job_id})  # a container may hide it
    end = time.monotonic() + (_SCRIPT_S if had_srun else _EXIT_S)
    while time.monotonic() < end:
        if is_ended():
            return
        time.sleep(0.2)
    # The batch script's srun has made step 0; a leader that was started again is in another. The own step ends last.
    for step in sorted({"0", own}, key=own.__eq__):
        ask("scancel", "--signal=KILL", f"{job.own_id}.{step}", timeout_s=5.0)
