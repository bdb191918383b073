"""What `plan` must know of this machine, gathered beforehand (`launcher.submission.facts.gather`): plain frozen values."""

from __future__ import annotations

from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal

from launcher.frozen import frozen
from launcher.run.spec import SiteSpec
from launcher.slurm.site import Partition

if TYPE_CHECKING:
    from launcher.config.check.user_code import Call
    from launcher.run.after import Predecessor

BackendName = Literal["auto", "slurm", "local"]


@frozen(kw_only=True)
class Interpreter:
    """The Python that agents and workers will run."""

    path: str
    """Absolute."""
    origin: str
    """Where it was named: "environment.python", "$VIRTUAL_ENV", "$CONDA_PREFIX", "the launcher's own", "container"."""
    version: str = ""
    """Such as "3.11.7"; empty when it did not answer."""
    packages: dict[str, str] = field(default_factory=dict)
    """Versions of its packages, by name."""
    editable: tuple[tuple[str, str], ...] = ()
    """Packages installed editable: name and source directory."""
    prefixes: tuple[str, ...] = ()
    """Its folder, then that of the Python it was made from (venv); one where they are the same."""
    paths: tuple[str, ...] = ()
    """Where it imports from: sys.path, absolute."""
    error: str = ""
    """Why it did not answer."""
    checked: bool = True
    """False inside a container, which cannot be looked into from here, and where a job that may not be the user's names it."""


@frozen
class StagedFiles:
    """The Python environment as an archive holds it (`environment.stage`)."""

    folder: str = ""
    """Where archives of this user are: beside the runs."""
    roots: tuple[str, ...] = ()
    """Its folders, absolute. In the archive they are called 0, 1, ..."""
    packages: tuple[str, ...] = ()
    """Folders of packages that the interpreter imports from, resolved; any other in ``roots`` is left out."""
    count: int = 0
    """How many files it has."""
    size: int = 0
    """Bytes of all files."""
    key: str = ""
    """The same where the files are the same, by their names, sizes and times."""
    outside: tuple[str, ...] = ()
    """Folders that the interpreter imports from besides: they stay on the shared file system."""

    @property
    def archive(self) -> str:
        """The archive's path."""
        return f"{self.folder}/{self.key}.tar"


@frozen(kw_only=True)
class CodeFacts:
    """The code directory as a copy would take it."""

    root: str
    """Absolute and resolved."""
    files: tuple[tuple[str, int], ...] = ()
    """Path relative to ``root`` and size in bytes, sorted by path."""
    outside: tuple[tuple[str, str], ...] = ()
    """Symbolic links to directories outside ``root``: they stay links. Path and target."""
    inside: tuple[tuple[str, str], ...] = ()
    """Symbolic links to directories inside ``root``, which are among ``files``, too. Path and target."""
    closed: tuple[str, ...] = ()
    """Files and folders that cannot be read: they are not copied."""
    private: tuple[str, ...] = ()
    """Files and folders that their owner has closed to all others: the group of a shared run cannot read them either."""
    left_out: tuple[tuple[str, str], ...] = ()
    """What ``args`` and ``params`` name that is in ``root`` but would not be in the copy: key and relative path."""
    git: bool = False
    """Listed by git (tracked, and untracked but not ignored); else by walking."""
    commit: str = ""
    """The commit that is checked out."""
    dirty: bool = False
    """Something differs from the commit."""
    doubt: str = ""
    """Whose else one of the files may be; empty where they are the user's own."""
    kept: bool = False
    """The run has its copy already and keeps it (a resubmission)."""
    attaches: bool = False
    """The script, or a module of the code that it imports, calls ``launcher.attach``."""
    spawns: tuple[Call, ...] = ()
    """Where the script starts processes with torch.multiprocessing's spawn."""
    unguarded_loader: str = ""
    """Where a script without ``if __name__ == "__main__"`` asks for loader processes."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for _, size in self.files)


@frozen(kw_only=True)
class SlurmFacts:
    """Whether SLURM is here, and what was found out about it."""

    found: bool = False
    """Its commands are on the PATH."""
    unusable: str = ""
    """Why a SLURM that is here cannot be used from here, a sentence without its stop."""
    site: SiteSpec = field(default_factory=SiteSpec)
    """Grace, preempt mode and so on of the job's partition."""
    known: bool = False
    """SLURM answered; otherwise ``site`` holds defaults."""
    max_array_size: int = 1001
    """MaxArraySize: the highest index is one less."""
    gpu_request: str = "gpus-per-node"
    """How this SLURM is asked for GPUs: gpus-per-node or gres."""
    partition: Partition | None = None
    """The job's partition, where SLURM told of it."""
    partitions: tuple[str, ...] = ()
    """The names of all partitions that SLURM shows to this user."""
    silent: str = ""
    """Why SLURM did not answer, when it is here but did not."""


@frozen(kw_only=True)
class Facts:
    """Everything a plan depends on beside the job."""

    backend: BackendName = "auto"
    """What the user asked for."""
    run_id: str
    """Proposed id; the folder is claimed when it is submitted."""
    runs_dir: str
    """Where runs lie, absolute."""
    runs_dir_shown: str = ""
    """As the user would write it."""
    free_bytes: int | None = None
    free_inodes: int | None = None
    interpreter: Interpreter
    launcher_python: str = "python3"
    """The interpreter of this very command: what the batch script runs where the job's own is inside a container."""
    hold: bool = False
    """The job only holds an allocation: other runs are to train in it."""
    image: str | None = None
    """The job's container image; one that is a file by its absolute path."""
    image_missing: bool = False
    """There is no such file here."""
    staged: StagedFiles | None = None
    """The files of the interpreter's environment, where the job stages them."""
    code: CodeFacts
    slurm: SlurmFacts = SlurmFacts()
    gpus: tuple[str, ...] = ()
    """GPUs of this machine that the local backend may use, by the names CUDA_VISIBLE_DEVICES takes."""
    cpus_here: int = 1
    home: str = ""
    """For showing paths as ~/..."""
    submit_dir: str = ""
    """The folder in which the run's first submission ran: lines of environment.setup start there, in every attempt."""
    sbatch_variables: tuple[str, ...] = ()
    """Names of SBATCH_* variables in this environment: sbatch lets them override a script's own lines."""
    debug_detail: bool = False
    """TORCH_DISTRIBUTED_DEBUG=DETAIL is set here and would reach the job."""
    after: tuple[Predecessor, ...] = ()
    """Runs to wait for."""
    doubt: str = ""
    """Why the job may not be the user's own; then nothing that it names was run to be looked at."""
    unset_pass: tuple[str, ...] = ()
    """Names in environment.pass and notify.urls that are not set here."""

    @property
    def gpus_here(self) -> int:
        """How many GPUs this machine offers."""
        return len(self.gpus)

    def for_reading(self) -> Facts:
        """Return the facts for a plan that is only printed: without SLURM here, what would be submitted to one."""
        if self.slurm.found or self.backend == "local":
            return self
        if self.slurm.unusable:
            why = self.slurm.unusable
        elif self.backend == "slurm":
            why = "there is no sbatch here: run launcher submit on a machine that has it"
        else:
            why = "no SLURM here: this plan is for a cluster (to train on this machine, add --backend local)"
        slurm = replace(self.slurm, found=True, silent=why)
        return replace(self, backend="slurm", slurm=slurm, image_missing=False)  # it may lie on the cluster alone
