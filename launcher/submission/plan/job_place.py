"""Where the files of a SLURM job are."""

from __future__ import annotations

import shlex

from launcher.frozen import frozen


@frozen
class JobPlace:
    """Where the files of a SLURM job are: the points of a sweep share one place, any other run has its own."""

    root: str
    """The folder that holds lib, submitit and code: the run's, or the sweep's."""
    job_name: str
    """SLURM's name of the job: the run's id, or the sweep's."""
    run_dir: str
    """The run's folder as a shell word; for a sweep it names the element."""

    @property
    def submitit(self) -> str:
        """Folder of submitit's pickles and logs."""
        return f"{self.root}/submitit"


def array_place(root: str, job_name: str, index: str) -> JobPlace:
    """Return the place of an array whose elements find their runs as ``index``/NUMBER."""
    return JobPlace(root, job_name, f'{shlex.quote(index)}/"${{SLURM_ARRAY_TASK_ID:-0}}"')
