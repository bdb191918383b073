"""Read the SLURM_* environment into a frozen value, and keep it from leaking into jobs submitted from inside a job."""

from __future__ import annotations

import os
from collections.abc import Mapping

from launcher.frozen import frozen
from launcher.run.units import whole_number

_PREFIXES = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "PMI_", "PMIX_", "PMI2_")


def without_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """Return ``environ`` without an allocation's variables; SLURM_CONF stays, as without it no command finds its cluster."""
    return {k: v for k, v in environ.items() if k == "SLURM_CONF" or not k.startswith(_PREFIXES)}


@frozen(kw_only=True)
class JobEnviron:
    """What SLURM told this process about its job and its place in it. None and "" are unknown."""

    job_id: str = ""
    """SLURM_JOB_ID: for an array element an id of its own, except for the last one, which keeps the array's."""
    array_job_id: str = ""
    array_task_id: int | None = None
    job_name: str = ""
    partition: str = ""
    node_list: str = ""
    """The hosts of this step (of the job, outside a step), SLURM's short form; `launcher.slurm.hosts` expands it."""
    node_name: str = ""
    """SLURMD_NODENAME: SLURM's name for this host; the host's own may differ."""
    restart_count: int = 0
    """SLURM_RESTART_COUNT: requeues of every cause."""

    @property
    def inside(self) -> bool:
        """This process belongs to a job."""
        return bool(self.job_id)

    @property
    def own_id(self) -> str:
        """The job or the array element, and nothing else: ``ARRAY_TASK`` for elements.

        An array's last element keeps the array's own id, which ``scontrol requeue`` takes for all elements.
        """
        if self.array_job_id and self.array_task_id is not None:
            return f"{self.array_job_id}_{self.array_task_id}"
        return self.job_id


def job_environ(environ: Mapping[str, str] = os.environ) -> JobEnviron:
    """Read SLURM's variables; a garbled number is unknown."""
    get = environ.get
    return JobEnviron(
        job_id=get("SLURM_JOB_ID") or get("SLURM_JOBID") or "",
        array_job_id=get("SLURM_ARRAY_JOB_ID", ""),
        array_task_id=_number(get("SLURM_ARRAY_TASK_ID")),
        job_name=get("SLURM_JOB_NAME", ""),
        partition=get("SLURM_JOB_PARTITION", ""),
        node_list=get("SLURM_STEP_NODELIST") or get("SLURM_JOB_NODELIST") or get("SLURM_NODELIST") or "",
        node_name=get("SLURMD_NODENAME", ""),
        restart_count=_number(get("SLURM_RESTART_COUNT")) or 0,
    )


def _number(text: str | None) -> int | None:
    return whole_number(text or "")
