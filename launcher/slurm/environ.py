"""Read the SLURM_* environment into a frozen value, and keep it from leaking into jobs submitted from inside a job."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from launcher.frozen import frozen
from launcher.run.units import whole_number

_PREFIXES = ("SLURM_", "SLURMD_", "SRUN_", "SALLOC_", "PMI_", "PMIX_", "PMI2_")
_CLUSTER = {
    "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_SOCKET", "SLURM_SACK_KEY", "SLURM_SACK_JWKS"
}  # fmt: skip
"""Where the commands find their cluster and prove who asks."""
_SCRIPTS_OWN = re.compile(
    r"SBATCH_(JOB_NAME|TIMELIMIT|WAIT|OUTPUT|ERROR|INPUT|OPEN_MODE|REQUEUE|NO_REQUEUE|NO_KILL|SIGNAL|EXPORT|GET_USER_ENV|ARRAY_INX|"
    r"CLUSTERS|CONTAINER(_ID)?)"
)
"""What every script of ours says: sbatch takes the environment's word for it first (sbatch(1), "Input environment variables")."""

_WORKER_VARIABLES = re.compile(
    r"^(RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|ROLE_.*|MASTER_(ADDR|PORT)|TORCHELASTIC_.*|SUBMITIT_.*|"
    r"LAUNCHER_(RUN_DIR|ATTEMPT|ROUND|WORKER_FD|SUBMIT_DIR)|PMI_.*|PMIX_.*)$"
)


def without_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """Return ``environ`` for sbatch, without an allocation's variables and without what would undo the script's own options.

    The others of ``SBATCH_*`` stay: where a site wants an account, people set SBATCH_ACCOUNT once for all their jobs.
    """
    return {
        name: value
        for name, value in environ.items()
        if name in _CLUSTER or not (name.startswith(_PREFIXES) or _SCRIPTS_OWN.fullmatch(name))
    }


def environment_for_sbatch(
    environ: Mapping[str, str], parameters: Mapping[str, Any], secrets: Sequence[str] = ()
) -> dict[str, str]:
    """Return the environment for sbatch, which SLURM hands on to the job.

    Without an outer allocation's ``SLURM_*`` (a leaked SLURM_CPU_BIND cost 3x); without ``SBATCH_*`` that would override what the script
    says, or lead to another cluster; without an outer worker's ranks; without variables passed by name.
    """
    said = {**parameters, **parameters.get("additional_parameters", {})}
    words = [key.upper().replace("-", "_") for key in said]
    words += ["MEM_PER_NODE", "MEM_PER_CPU", "MEM_PER_GPU"] if "MEM" in words else []
    words += ["GPUS", "GPUS_PER_NODE", "GPUS_PER_TASK", "GRES"] if {"GPUS_PER_NODE", "GRES"} & {*words} else []
    taken = {f"SBATCH_{word}" for word in words}
    return {
        name: value
        for name, value in without_slurm(environ).items()
        if name not in taken and name not in secrets and not _WORKER_VARIABLES.match(name)
    }


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
    """The hosts of this step (of the job, outside a step), SLURM's short form; `launcher.hosts` expands it."""
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


@contextlib.contextmanager
def replaced_environ(values: Mapping[str, str]) -> Iterator[None]:
    """Replace this process's environment for the time inside."""
    before = dict(os.environ)
    try:
        _set_environ(values)
        yield
    finally:
        _set_environ(before)


def _set_environ(values: Mapping[str, str]) -> None:
    for name in os.environ.keys() - values.keys():
        del os.environ[name]
    os.environ.update(values)
