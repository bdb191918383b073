"""Submit a plan to SLURM through submitit's SlurmExecutor, and find the job again when sbatch's answer was lost."""

from __future__ import annotations

import contextlib
import io
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from launcher.errors import SubmitError
from launcher.slurm.commands import ask
from launcher.slurm.environ import environment_for_sbatch, replaced_environ

if TYPE_CHECKING:
    from launcher.node.agent.main import AgentMain
    from launcher.submission.plan.submission_plan import SubmissionPlan

# What sbatch and submitit say when the controller may have taken the job although no answer came, or none that could be read.
_UNCLEAR = re.compile(
    r"make sense of sbatch output|timed out|unable to contact slurm controller|communication connection failure|zero bytes were transmitted|"
    r"connection (refused|reset)|unexpected message|message receive failure",
    re.IGNORECASE,
)
_LOOKS = 4
"""Times that squeue is asked for a job whose submission has an unclear answer, 0, 2, 4 and 6 s after the one before."""


def python_path(*folders: str) -> str:
    """Return a PYTHONPATH with ``folders`` before what it is here."""
    return os.pathsep.join(filter(None, [*folders, os.environ.get("PYTHONPATH")]))


def submit_array(plan: SubmissionPlan, run_dirs: Sequence[str], *, besides: Sequence[str] = ()) -> list[str]:
    """Submit runs as one array (or one plain job) and return their job ids, ``J`` or ``J_0``, ``J_1``, ...

    ``besides``: ids of jobs that were submitted under the same name before.
    Raises SubmitError; then nothing is queued, or its sentence says that this is not known.
    """
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    from launcher.node.agent.main import AgentMain

    said, folder = io.StringIO(), plan.submitit_dir
    environment = environment_for_sbatch(os.environ, plan.parameters, plan.spec.pass_names)
    before = _pickles(Path(folder))
    try:
        with replaced_environ(environment), contextlib.redirect_stderr(said):  # submitit gives it to sbatch
            executor = SlurmExecutor(folder=folder, python=plan.command)
            executor.update_parameters(**plan.parameters)
            jobs = executor.submit_array([AgentMain(run_dir) for run_dir in run_dirs])
            return [str(job.job_id) for job in jobs]
    except (FailedJobError, FailedSubmissionError, RuntimeError, OSError) as error:
        text = f"{error}\n{said.getvalue()}"
        killed = getattr(error.__cause__, "returncode", 0) < 0  # Ctrl-C: somebody waits
        lines = (re.sub(r"^sbatch: (error: )?", "", line).strip() for line in text.splitlines())
        why = "; ".join(dict.fromkeys(filter(None, lines))) or ("it was killed" if killed else "it gave no reason")
        # A file of submitit's could not be written, perhaps when SLURM had the job already.
        full = isinstance(error, OSError)
        if killed or full or _UNCLEAR.search(text):
            name, known = str(plan.parameters["job_name"]), {one.partition("_")[0] for one in besides}
            job_id = _look_for(name, known, environment, why, looks=1 if killed or full else _LOOKS)
            if job_id is not None:
                return _adopt(_pickles(Path(folder)) - before, run_dirs, job_id)
        raise SubmitError(f"{'the job was not submitted' if full else 'sbatch refused the job'}: {why}") from None


def _look_for(name: str, known: set[str], environment: dict[str, str], why: str, *, looks: int) -> str | None:
    """Return the id of the queued job called ``name`` that is none of ``known``; None where the queue has none after all looks.

    The name is that of a run or a sweep, so nobody else's. A sweep's arrays have one name.

    Raises SubmitError where squeue never answers. Such a job, if there is one, ends as it begins: its files are not there.
    """
    answered = False
    for attempt in range(looks):
        time.sleep(2.0 * attempt)  # a busy controller may take the job after sbatch has given up
        answer = ask(
            "squeue", "--noheader", "--me", f"--name={name}", "--format=%F", timeout_s=60.0, environ=environment
        )
        if answer.ok and (found := [job_id for job_id in answer.out.split() if job_id not in known]):
            return found[0]
        answered = answered or answer.ok
    if answered:
        return None
    raise SubmitError(
        f"it is not known whether SLURM took the job (sbatch: {why}; squeue does not answer): look for it with "
        f"`squeue --me --name={name}`; it would fail as it begins, so cancel it and submit again"
    ) from None


def _pickles(folder: Path) -> set[Path]:
    """Return the pickles of jobs to which SLURM has given no id."""
    return {p for p in folder.glob("*.pkl") if re.fullmatch(r"[0-9a-f]{32}\.pkl", p.name)}


def _adopt(pickles: set[Path], run_dirs: Sequence[str], job_id: str) -> list[str]:
    """Do what submitit does after sbatch's answer: give each run's pickle the name that its task waits for.

    Their times do not tell the order in which they were written: it took less than the file system tells apart.
    """
    from submitit.core.utils import DelayedSubmission, JobPaths

    held = {pickle: cast("AgentMain", DelayedSubmission.load(pickle).function) for pickle in pickles}
    of_run = {agent.run_dir: pickle for pickle, agent in held.items()}
    ids = [job_id] if len(run_dirs) == 1 else [f"{job_id}_{i}" for i in range(len(run_dirs))]
    for one, run_dir in zip(ids, run_dirs, strict=True):
        JobPaths(of_run[run_dir].parent, job_id=one).move_temporary_file(of_run[run_dir], "submitted_pickle")
    return ids


def cancel_pending(job_ids: Sequence[str]) -> None:
    """Cancel jobs just submitted, whole arrays, when what had to follow failed."""
    ask("scancel", *dict.fromkeys(job_id.partition("_")[0] for job_id in job_ids), timeout_s=60.0)
