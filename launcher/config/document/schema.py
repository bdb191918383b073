"""The job file's schema: frozen stdlib dataclasses, checked by pydantic, a docstring under every field.

``docs/reference.md`` and ``launcher schema`` are generated from this file. A section's class documents the key that holds it.
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from launcher.config.document.clock_times import minutes
from launcher.config.document.node_counts import bounds, node_count
from launcher.frozen import frozen


class _Section:
    """Base of all sections. They are standard dataclasses, so pydantic builds one validator for the whole job."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, populate_by_name=True)


def _items() -> Any:
    """A field that is an empty list by default."""
    return field(default_factory=list)


def _keys() -> Any:
    """A field that is an empty mapping by default."""
    return field(default_factory=dict)


def _text(value: object) -> object:
    """Return a number or truth value as text, as YAML and `argument_texts` write it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


_PLACE = r"^/[A-Za-z0-9_./+@-]*$"


def _stage_place(value: object) -> object:
    if isinstance(value, bool) or (isinstance(value, str) and re.fullmatch(_PLACE, value)):
        return value
    raise ValueError("must be true, false or an absolute path without spaces and quotes, such as /local/scratch")


Text = Annotated[str, BeforeValidator(_text, json_schema_input_type=str | int | float | bool)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Whole = Annotated[int, Field(ge=0, le=2**31 - 1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Minutes = Positive
NodeCounts = Annotated[Count | Annotated[str, Field(pattern=r"^\d+-\d+$")], BeforeValidator(node_count)]
StagePlace = Annotated[bool | Annotated[str, Field(pattern=_PLACE)], BeforeValidator(_stage_place)]
Limit = Annotated[Count, BeforeValidator(minutes, json_schema_input_type=Count | str)]


@frozen(kw_only=True)
class Code(_Section):
    """The code that is copied into the run."""

    dir: str = "."
    """Code directory, relative to the job file. It comes first on sys.path of every worker."""
    link: list[str] = _items()
    """Directories, such as data, to link instead of copying."""
    snapshot: bool = True
    """Copy the code into the run. false links the whole directory, so later edits change a queued job."""
    max_mb: Count = 200
    """Largest copy in MB. A larger one is an error that names its largest files."""


@frozen(kw_only=True)
class Resources(_Section):
    """The nodes, GPUs, CPUs, memory and time of the job. The names are submitit's."""

    nodes: NodeCounts = 1
    """Number of nodes that train, or a range such as 2-4: it starts with what SLURM can give, and goes on with fewer when a node is lost."""
    gpus_per_node: Whole = 0
    """GPUs per node; 0 trains on CPUs."""
    tasks_per_node: Count | None = None
    """Workers per node. Default: one per GPU, or one without GPUs."""
    cpus_per_task: Count = 1
    """CPUs per worker."""
    mem_gb: Positive | None = None
    """Memory per node in GB. Default: SLURM's default for the partition."""
    timeout_min: Limit = 60
    """Time limit of one attempt, in minutes or as a quoted clock time such as "24:00:00" or "1-12:00:00"."""
    spare_nodes: Whole = 0
    """Number of extra nodes that wait to replace failed ones."""
    replace: bool = False
    """Submit a one-node job for each node that is missing, while the run trains without it. Needs spare_nodes or a range of nodes."""

    @property
    def most_nodes(self) -> int:
        """The number of nodes that train where all are there."""
        return bounds(self.nodes)[1]

    @property
    def least_nodes(self) -> int:
        """The number of nodes without which nothing trains."""
        return bounds(self.nodes)[0]


@frozen(kw_only=True)
class Slurm(_Section):
    """Options of sbatch, under sbatch's names."""

    partition: str | None = None
    """Partition. Default: SLURM's default partition."""
    account: str | None = None
    """Account to charge."""
    qos: str | None = None
    """Quality of service."""
    constraint: str | None = None
    """Required node features."""
    reservation: str | None = None
    """Reservation to run in."""
    exclude: str | None = None
    """Hosts that the job does not use."""
    nodelist: str | None = None
    """Hosts that the job uses."""
    exclusive: bool = False
    """Do not share nodes with other jobs."""
    dependency: str | None = None
    """Dependency in sbatch's syntax. `after` is simpler."""
    comment: str | None = None
    """Comment that SLURM stores with the job."""
    mail_type: str | None = None
    """Events at which SLURM sends mail: BEGIN, END, FAIL, ..."""
    mail_user: str | None = None
    """Address to which SLURM sends mail."""
    gres: str | None = None
    """Generic resources instead of --gpus-per-node, such as "gpu:a100:4"."""
    extra: dict[str, str | int | float | bool] = _keys()
    """Other sbatch options, by their long names without dashes. true is an option without a value."""
    srun_args: list[str] = _items()
    """Additional arguments of srun."""


@frozen(kw_only=True)
class Ddp(_Section):
    """Options of DistributedDataParallel."""

    bucket_cap_mb: Positive | None = None
    """Size of gradient buckets in MB."""
    static_graph: bool = False
    """The graph is the same in every step."""
    find_unused_parameters: bool = False
    """Some parameters may get no gradient in a step."""
    gradient_as_bucket_view: bool = True
    """Gradients are views of the buckets, which saves one copy."""


@frozen(kw_only=True)
class Distributed(_Section):
    """The process group of torch.distributed."""

    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """Backend of the process group. auto: nccl on GPUs, gloo on CPUs."""
    init_timeout_min: Minutes = 30.0
    """Minutes that start-up waits for the slowest worker."""
    collective_timeout_min: Minutes = 30.0
    """Minutes that one collective of a task or function may take. A script passes its own timeout to init_process_group."""
    interface: str | None = None
    """Network interface, such as ib0. Default: found automatically."""
    port_range: list[Annotated[int, Field(ge=1024, le=65535)]] = field(default_factory=lambda: [20000, 32000])
    """First and last port on which the leader may listen."""
    start_method: Literal["forkserver", "spawn"] = "forkserver"
    """How workers start. forkserver imports torch once per node; use spawn when a library cannot be forked."""
    ddp: Ddp = field(default_factory=Ddp)


@frozen(kw_only=True)
class Environment(_Section):
    """The interpreter, container and environment variables of workers."""

    variables: dict[str, Text] = _keys()
    """Environment variables: text, numbers, true or false, set as they are written. List secrets under `pass`."""
    pass_: Annotated[list[str], Field(alias="pass")] = _items()
    """Names of variables to copy from the environment of submit. Their values are written to no script or log."""
    setup: list[str] = _items()
    """Shell lines that run on each node before Python starts, such as "module load cuda/12.1". They begin in the directory where
    the job was submitted, in every attempt."""
    python: str | None = None
    """Python interpreter; a path is relative to the job file. Default: the active one at submission; in a container, the image's
    python3."""
    stage: StagePlace = False
    """Carry the Python environment to each node as one file, and start Python from there: in /tmp (true), or in another folder
    that each node has of its own. Only on SLURM."""
    container: str | None = None
    """Image for pyxis (SLURM's --container-image), or a .sif file for Apptainer."""
    container_args: list[str] = _items()
    """Additional arguments of the container runtime."""


@frozen(kw_only=True)
class Checkpointing(_Section):
    """When the launcher saves checkpoints and which it keeps."""

    enabled: bool = True
    """Save checkpoints."""
    interval_steps: Count | None = None
    """Save every N optimizer steps."""
    interval_min: Minutes | None = None
    """Save every N minutes. Without either interval, the launcher chooses it from the measured cost of saving."""
    min_interval_min: Minutes = 1.0
    """Shortest automatic interval, in minutes."""
    max_interval_min: Minutes = 30.0
    """Longest automatic interval, in minutes."""
    keep_last: Annotated[int, Field(ge=2)] = 3
    """Number of newest checkpoints to keep."""
    keep_every_steps: Count | None = None
    """Also keep every checkpoint whose step is a multiple of N."""
    watch: str | None = None
    """Pattern of a script's own checkpoints, below the run directory. New or changed files that match count as progress."""


@frozen(kw_only=True)
class Restart(_Section):
    """When and how often a run restarts."""

    max_restarts: Whole = 3
    """Restarts without a new checkpoint, after which the run ends failed. Each cause is counted separately."""
    max_total_hours: Positive = 168.0
    """Hours of allocation over all attempts. A run that reaches them saves and ends failed; launcher resubmit with a higher
    value continues it."""
    requeue: bool = True
    """Requeue the job after preemption, time limit or node failure."""
    queue_early: bool = False
    """Queue the job of the next attempt at the start, held until this one's time limit: it ages meanwhile, and starts sooner. Only where
    SLURM ages held jobs (ACCRUE_ALWAYS)."""
    hang_detection: bool = True
    """Restart the workers when no rank makes progress for longer than the learned limit. A script that does not call
    launcher.attach() has no limit: it reports no steps."""
    hang_floor_s: Positive = 60.0
    """Lower bound of the learned limit, in seconds."""
    idle_timeout_min: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """End an allocation that makes no progress for N minutes; 0: never (a hold: after 30 minutes). Steps, saves and
    evaluations are progress. Before the first step, after the loops, and in scripts that report no steps, so are the use of
    GPUs or CPUs and new or changed files of checkpoint.watch."""
    max_at_risk_min: Minutes = 60.0
    """Minutes that training continues while checkpoints cannot be written."""
    signal_lead_s: Annotated[int, Field(ge=5)] = 120
    """Seconds before the time limit at which the launcher saves for the next attempt."""


@frozen(kw_only=True)
class Mlflow(_Section):
    """MLflow (extra: mlflow)."""

    uri: str | None = None
    """Tracking server. Default: $MLFLOW_TRACKING_URI."""
    experiment: str | None = None
    """Experiment. Default: the job's name."""


@frozen(kw_only=True)
class Wandb(_Section):
    """Weights & Biases (extra: wandb)."""

    project: str | None = None
    """Project. Default: the job's name."""
    mode: Literal["online", "offline", "disabled"] | None = None
    """Mode of W&B. Default: $WANDB_MODE, or online."""


@frozen(kw_only=True)
class Trackers(_Section):
    """Trackers that get the metrics in addition to the run's own files. They cannot stop or slow training."""

    tensorboard: bool = False
    """Write event files into the run's trackers/ (extra: tensorboard)."""
    mlflow: Mlflow | None = None
    wandb: Wandb | None = None


@frozen(kw_only=True)
class Notify(_Section):
    """Notifications about a run (extra: notify)."""

    urls: list[str] = _items()
    """Names of environment variables that hold apprise URLs. The URLs themselves are secrets."""
    on: list[Literal["started", "preempted", "failed", "completed", "cancelled"]] = field(
        default_factory=lambda: ["started", "preempted", "failed", "completed"]
    )
    """Events that send a notification."""


@frozen(kw_only=True)
class After(_Section):
    """Start only after other runs."""

    ok: list[str] = _items()
    """Runs that must have completed."""
    any: list[str] = _items()
    """Runs that must have ended."""
    fails: list[str] = _items()
    """Runs that must have failed."""


@frozen(kw_only=True)
class Job(_Section):
    """A job: what to train, on which resources. Exactly one of task, function and script."""

    name: str | None = None
    """Name of the job's runs. Default: the name of the script, task or function."""
    task: str | None = None
    """Subclass of launcher.Training, as module:Class."""
    function: str | None = None
    """Function that is called with a launcher.Worker, as module:name."""
    script: str | None = None
    """Script file, or "-m package.module". Any torchrun script works unmodified."""
    args: list[str | int | float | bool] = _items()
    """Arguments of the script. They may contain ${params.x} and ${run.dir}."""
    params: dict[str, Any] = _keys()
    """Keyword arguments of the task or function, and values for ${params.x}."""
    seed: Whole = 0
    """Seed of python, numpy and torch in a task or function, and of the order of samples in a task and in `batches`. A script
    seeds itself; only dry-run seeds it."""
    deterministic: bool = False
    """Use torch's deterministic algorithms. A bitwise identical resume on GPUs needs them."""
    code: Code = field(default_factory=Code)
    resources: Resources = field(default_factory=Resources)
    slurm: Slurm = field(default_factory=Slurm)
    distributed: Distributed = field(default_factory=Distributed)
    environment: Environment = field(default_factory=Environment)
    checkpoint: Checkpointing = field(default_factory=Checkpointing)
    restart: Restart = field(default_factory=Restart)
    sweep: dict[str, Any] = _keys()
    """Lists of values by key path, such as params.lr: [0.1, 0.01]. array_parallelism limits the points that run at once."""
    trackers: Trackers = field(default_factory=Trackers)
    notify: Notify = field(default_factory=Notify)
    after: str | After | None = None
    """Run that must have completed, or lists of runs under ok, any and fails."""
    preflight: bool = True
    """Check the nodes before the first round."""
    runs_dir: str | None = None
    """Directory of runs. Default: $LAUNCHER_RUNS_DIR, else the site's, else ./runs."""
    share: Literal["none", "group"] = "none"
    """Who may read the run's directory: none (0700) or group (0750)."""
