"""What planning works out: one run, ready to be submitted."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from launcher.frozen import frozen
from launcher.redact import redact, redact_values
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.submission.facts.facts import CodeFacts, Interpreter, StagedFiles
from launcher.submission.plan import script
from launcher.submission.plan.job_place import JobPlace


@frozen(kw_only=True)
class SubmissionPlan:
    """One run, ready to be submitted."""

    backend: Literal["slurm", "local"]
    spec: RunSpec
    code: CodeFacts
    link: tuple[str, ...]
    """Directories of the code (relative) that are linked instead of copied."""
    snapshot: bool
    """Copy the code; otherwise the whole directory is linked."""
    staged: StagedFiles | None = None
    """What the archive of the environment holds, where the job stages it."""
    python_path: tuple[str, ...]
    """Entries of PYTHONPATH, absolute: the run's lib, then sources of editable packages inside the snapshot."""
    command: str
    """The interpreter as submitit puts it into a shell command, setup lines and container included."""
    parameters: dict[str, Any]
    """submitit's parameters, by the names its SlurmExecutor takes."""
    job_yaml: str
    """What becomes job.yaml."""
    base_dir: str
    """What relative paths of the job are relative to."""
    submit_dir: str = ""
    """Where lines of environment.setup start."""
    warnings: tuple[str, ...] = ()
    summary: tuple[str, ...] = ()
    """Lines for a user, in order: heading first."""
    gpu_hours: float = 0.0
    """GPU-hours (CPU-hours where there are no GPUs) of one attempt."""
    gpu_hours_max: float = 0.0
    """The most all attempts may cost."""
    runs_dir: str
    interpreter: Interpreter
    max_code_mb: int
    place: JobPlace
    """Where the files of its SLURM job are: the run's folder, or the sweep's."""

    @property
    def run_dir(self) -> str:
        """The run's folder, absolute."""
        return self.spec.run_dir

    @property
    def paths(self) -> RunPaths:
        """The files of the run."""
        return RunPaths(Path(self.run_dir))

    @property
    def sbatch(self) -> str:
        """The sbatch script exactly as submitted; empty for the local backend."""
        return self.array_script(1)

    def array_script(self, points: int) -> str:
        """Return the script of the array of ``points`` runs that begins with this one."""
        if self.backend == "local":
            return ""
        return script.render_script(self.command, self.place.submitit, self.parameters, points)

    @property
    def submitit_dir(self) -> str:
        """Folder of submitit's pickles and logs."""
        return self.place.submitit

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for ``--json``, without secrets: what is submitted has them."""
        return {
            "run": self.spec.id,
            "run_dir": self.run_dir,
            "backend": self.backend,
            "summary": list(self.summary),
            "warnings": list(self.warnings),
            "gpu_hours": self.gpu_hours,
            "gpu_hours_max": self.gpu_hours_max,
            "world_size": self.spec.world_size,
            "spec": redact_values(asdict(self.spec)),
            "code": {"root": self.code.root, "files": len(self.code.files), "bytes": self.code.size,
                     "commit": self.code.commit, "dirty": self.code.dirty, "link": list(self.link)},
            "sbatch": redact(self.sbatch),
        }  # fmt: skip
