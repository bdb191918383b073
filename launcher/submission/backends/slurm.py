"""Hands a plan to SLURM through submitit's SlurmExecutor, and finds the job again when sbatch's answer was lost."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.errors import SubmitError

__all__ = ["cancel_pending", "environment_for_sbatch", "submit", "submit_array"]

# What sbatch says when the controller may have taken the job although no answer came.
_LOST = re.compile(
    r"timed out|unable to contact slurm controller|communication connection failure|zero bytes were transmitted|"
    r"connection (refused|reset)|unexpected message|message receive failure",
    re.IGNORECASE,
)
_LOOKS = 4
_WORKER_VARIABLES = re.compile(
    r"^(RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|GROUP_RANK|ROLE_.*|MASTER_(ADDR|PORT)|TORCHELASTIC_.*|SUBMITIT_.*|"
    r"LAUNCHER_(RUN_DIR|ATTEMPT|ROUND|WORKER_FD)|PMI_.*|PMIX_.*)$"
)


def environment_for_sbatch(
    environ: Mapping[str, str], parameters: Mapping[str, Any], secrets: Sequence[str] = ()
) -> dict[str, str]:
    """The environment sbatch runs in, which SLURM hands on to the job.

    Without an outer allocation's ``SLURM_*`` (a leaked SLURM_CPU_BIND cost 3x) but with SLURM_CONF; without ``SBATCH_*``
    that would override what the script says; without an outer worker's ranks; without variables passed by name.
    """
    said = {**parameters, **parameters.get("additional_parameters", {})}
    taken = {f"SBATCH_{key.upper().replace('-', '_')}" for key in said} | {"SBATCH_EXPORT", "SBATCH_ARRAY_INX"}
    taken |= {"SBATCH_TIMELIMIT", "SBATCH_GRES" if "gres" in said else "SBATCH_TIMELIMIT", "SBATCH_JOB_NAME"}
    return {
        name: value
        for name, value in environ.items()
        if not (name.startswith("SLURM_") and name != "SLURM_CONF")
        and name not in taken
        and name not in secrets
        and not _WORKER_VARIABLES.match(name)
    }


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """submitit gives sbatch this process's environment: replace it meanwhile."""
    kept = dict(os.environ)
    try:
        os.environ.clear()
        os.environ.update(values)
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)


def submit(folder: str, command: str, parameters: dict[str, Any], run_dir: str, secrets: Sequence[str] = ()) -> str:
    """Submit one run and return its job id. Raises SubmitError; then nothing is queued."""
    return submit_array(folder, command, parameters, [run_dir], secrets)[0]


def submit_array(
    folder: str, command: str, parameters: dict[str, Any], run_dirs: Sequence[str], secrets: Sequence[str] = ()
) -> list[str]:
    """Submit runs as one array (or one plain job) and return their job ids, ``J`` or ``J_0``, ``J_1``, ...

    Raises SubmitError; then nothing is queued.
    """
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    from launcher.node.agent.main import AgentMain

    said = io.StringIO()
    environment = environment_for_sbatch(os.environ, parameters, secrets)
    before = _pickles(Path(folder))
    try:
        with _environment(environment), contextlib.redirect_stderr(said):
            executor = SlurmExecutor(folder=folder, python=command)
            executor.update_parameters(**parameters)
            jobs = executor.submit_array([AgentMain(run_dir) for run_dir in run_dirs])
            return [str(job.job_id) for job in jobs]
    except (FailedJobError, FailedSubmissionError, RuntimeError, OSError) as error:
        text = f"{error}\n{said.getvalue()}"
        name = str(parameters["job_name"])
        if _LOST.search(text) and (job_id := _look_for(name, environment)):
            return _adopt(_pickles(Path(folder)) - before, job_id)
        raise SubmitError(_sentence(text)) from None


def _sentence(text: str) -> str:
    """sbatch's own words without its prefixes."""
    lines = [re.sub(r"^sbatch: (error: )?", "", line).strip() for line in text.splitlines()]
    lines = [line for line in dict.fromkeys(lines) if line]
    return f"sbatch refused the job: {'; '.join(lines) or 'it did not say why'}"


def _look_for(name: str, environment: dict[str, str]) -> str | None:
    """The id of the queued job called ``name`` (a run's id, so unique), asked a few times while SLURM is busy."""
    for attempt in range(_LOOKS):
        time.sleep(2.0 * attempt)
        try:
            done = subprocess.run(
                ["squeue", "--noheader", "--me", f"--name={name}", "--format=%F"],
                capture_output=True, text=True, timeout=60, check=False, env=environment,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            found = done.stdout.split()
            return found[0] if found else None
    return None


def _pickles(folder: Path) -> set[Path]:
    """The work of jobs to which SLURM has given no number."""
    return {p for p in folder.glob("*.pkl") if re.fullmatch(r"[0-9a-f]{32}\.pkl", p.name)}


def _adopt(pickles: set[Path], job_id: str) -> list[str]:
    """Do what submitit does after sbatch's answer: give pickles the names that the job's tasks wait for."""
    from submitit.core.utils import JobPaths

    ids = [job_id] if len(pickles) == 1 else [f"{job_id}_{i}" for i in range(len(pickles))]
    for one, pickle in zip(ids, sorted(pickles, key=lambda p: p.stat().st_mtime_ns), strict=True):
        JobPaths(pickle.parent, job_id=one).move_temporary_file(pickle, "submitted_pickle")
    return ids


def cancel_pending(job_ids: Sequence[str]) -> None:
    """Take back jobs just submitted, when what had to follow failed."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(["scancel", *job_ids], capture_output=True, timeout=60, check=False)
