"""Makes the environment of workers: torchrun's variables and the job's, without those of SLURM's tasks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.node.wire.messages import RankPlace, StartRound
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec

HIDDEN_VARIABLES = {
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_GTIDS",
    "SLURM_TASK_PID",
    "SLURM_TASKS_PER_NODE",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_STEPID",
    "SLURM_CPU_BIND",
    "SLURM_DISTRIBUTION",
    "LAUNCHER_NOT_STAGED",
}
"""Lightning and Accelerate take ranks and sizes from SLURM's; they are the agents', one task per node."""
HIDDEN_PREFIXES = (
    "SLURM_STEP_",
    "SLURM_CPU_BIND_",
    "SLURM_SRUN_COMM_",
    "SLURM_LAUNCH_",
    "PMI_",
    "PMIX_",
    "SUBMITIT_",
    "TORCHELASTIC_",
)
NUMBERED = {
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
}
"""Every worker gets its own."""
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_ALGO": "Ring"}
"""``deterministic: true``: cuBLAS with a fixed workspace (torch refuses to be deterministic without), and the one of NCCL's
algorithms whose order of summation is fixed; by itself NCCL chooses by timing."""


_KEPT_COLLECTIVES = "2000"
"""Of torch's flight recorder, which tells who did not come to a collective. The default of torch 2.13; earlier it was 0 at times, off."""

_DUMP_MS = "2500"
"""What torch's watchdog gives the flight recorder's dump. It sleeps four times as long after every collective that failed, before it
ends the process (ProcessGroupNCCL.cpp, Watchdog::runLoop): a minute by default, on all ranks."""


def base_environment(
    environ: Mapping[str, str], spec: RunSpec, passed: Mapping[str, str], *, gloo_interface: str | None = None
) -> dict[str, str]:
    """Return the fork server's environment, which every worker inherits: what is read at import is set here.

    ``passed`` are the variables passed by name; ``gloo_interface`` is used where the host's own name does not lead to it.
    """
    hidden = HIDDEN_VARIABLES | NUMBERED
    base = {k: v for k, v in environ.items() if k not in hidden and not k.startswith(HIDDEN_PREFIXES)}
    base.setdefault("PYTHONHASHSEED", str(spec.seed % 2**32))
    base["OMP_NUM_THREADS"] = str(spec.cpus_per_task)
    base.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if "TORCH_NCCL_TRACE_BUFFER_SIZE" not in base:  # the older name; torch warns of it
        base.setdefault("TORCH_FR_BUFFER_SIZE", _KEPT_COLLECTIVES)
    base.setdefault("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", _DUMP_MS)
    if spec.deterministic:
        base = {**DETERMINISTIC, **base}
    if spec.interface:
        base["NCCL_SOCKET_IFNAME"] = spec.interface
    if spec.interface and not spec.interface.startswith("^"):  # gloo knows names and their beginnings, no signs
        base["GLOO_SOCKET_IFNAME"] = spec.interface.removeprefix("=")
    elif gloo_interface:
        base.setdefault("GLOO_SOCKET_IFNAME", gloo_interface)
    base.update(spec.variables)
    base.update(passed)
    base["LAUNCHER_RUN_DIR"] = spec.run_dir  # /proc shows by it to which run a process belongs
    return base


def worker_environment(spec: RunSpec, order: StartRound, worker: RankPlace, *, attempt: int) -> dict[str, str]:
    """Return what one worker of a round adds to the base."""
    rank, size, local_size = worker.rank, order.world_size, len(order.workers)
    values: dict[str, Any] = {
        "RANK": rank,
        "LOCAL_RANK": worker.local_rank,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": local_size,
        "GROUP_RANK": order.group_rank,
        "GROUP_WORLD_SIZE": -(-size // local_size),
        "ROLE_RANK": rank,
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": size,
        "MASTER_ADDR": order.master_addr,
        "MASTER_PORT": order.master_port,
        "TORCHELASTIC_RESTART_COUNT": order.round,
        "TORCHELASTIC_MAX_RESTARTS": spec.restart.max_restarts,
        "TORCHELASTIC_RUN_ID": spec.id,
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "LAUNCHER_RUN_DIR": spec.run_dir,
        "LAUNCHER_ATTEMPT": attempt,
        "LAUNCHER_ROUND": order.round,
        "LAUNCHER_RESUME_PATH": "",
        "LAUNCHER_RESUME_STEP": 0,
    }
    paths = RunPaths(Path(spec.run_dir))
    if (resume := order.resume) is not None:
        values["LAUNCHER_RESUME_PATH"] = paths.checkpoint(resume.step) if resume.own else spec.resume or ""
        values["LAUNCHER_RESUME_STEP"] = resume.step
    if order.mlflow_run_id is not None:
        values["MLFLOW_RUN_ID"] = order.mlflow_run_id
    if spec.work.kind in ("script", "module"):
        values["LAUNCHER_STOP_NOTE"] = paths.stop_note(attempt, order.round, order.group_rank)
    return {name: str(value) for name, value in values.items()}
