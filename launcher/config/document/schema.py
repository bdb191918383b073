"""The job file's schema: frozen stdlib dataclasses, checked by pydantic, a docstring under every field.

``docs/reference.md`` and ``launcher schema`` are generated from this file.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from launcher.config.document.clock_times import minutes
from launcher.frozen import frozen


class _Section:
    """What all sections share. They are dataclasses of the standard library: pydantic builds one validator for the whole job."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, populate_by_name=True)


def _no_items() -> list[Any]:
    return []  # pydantic asks for a factory's signature: of `list` itself, inspect finds it by parsing a text (1 ms each)


def _no_keys() -> dict[str, Any]:
    return {}


def _text(value: object) -> object:
    """A number or truth value as text, as YAML and `argument_texts` write it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


Text = Annotated[str, BeforeValidator(_text, json_schema_input_type=str | int | float | bool)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Whole = Annotated[int, Field(ge=0, le=2**31 - 1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Minutes = Positive
Limit = Annotated[Count, BeforeValidator(minutes, json_schema_input_type=Count | str)]


@frozen(kw_only=True)
class Code(_Section):
    """The code that is copied into the run."""

    dir: str = "."
    """The code directory, relative to the job file; first on sys.path of every worker."""
    link: list[str] = field(default_factory=_no_items)
    """Directories (data) to link instead of copying."""
    snapshot: bool = True
    """Copy the code into the run; false links the whole directory, so later edits reach a queued job."""
    max_mb: Count = 200
    """Refuse a larger copy and name its largest files."""


@frozen(kw_only=True)
class Resources(_Section):
    """What the job needs; names are submitit's."""

    nodes: Count = 1
    """Nodes that train."""
    gpus_per_node: Whole = 0
    """GPUs per node; 0 trains on CPUs."""
    tasks_per_node: Count | None = None
    """Workers per node; unset: one per GPU, or one."""
    cpus_per_task: Count = 1
    """CPUs of each worker."""
    mem_gb: Positive | None = None
    """Memory per node; unset: the site's default."""
    timeout_min: Limit = 60
    """Time limit of one attempt: minutes, or a quoted clock time such as "24:00:00" or "1-12:00:00"."""
    spare_nodes: Whole = 0
    """Nodes that stand by to replace dead ones."""


@frozen(kw_only=True)
class Slurm(_Section):
    """How SLURM is asked; names are sbatch's."""

    partition: str | None = None
    """Partition; unset: the site's default."""
    account: str | None = None
    """Account to charge."""
    qos: str | None = None
    """Quality of service."""
    constraint: str | None = None
    """Node features."""
    reservation: str | None = None
    """Reservation to run in."""
    exclude: str | None = None
    """Hosts not to use."""
    nodelist: str | None = None
    """Hosts to use."""
    exclusive: bool = False
    """Share nodes with nobody."""
    dependency: str | None = None
    """Dependency in sbatch's syntax; `after` is the easier way."""
    comment: str | None = None
    """Comment on the job."""
    mail_type: str | None = None
    """When SLURM sends mail: BEGIN, END, FAIL, ..."""
    mail_user: str | None = None
    """Whom SLURM sends mail."""
    gres: str | None = None
    """Generic resources instead of --gpus-per-node, e.g. "gpu:a100:4"."""
    extra: dict[str, str | int | float | bool] = field(default_factory=_no_keys)
    """Any other sbatch option, by its long name without dashes; true is a bare flag."""
    srun_args: list[str] = field(default_factory=_no_items)
    """More arguments for srun."""


@frozen(kw_only=True)
class Ddp(_Section):
    """Options of DistributedDataParallel."""

    bucket_cap_mb: Positive | None = None
    """Size of gradient buckets."""
    static_graph: bool = False
    """The graph never changes."""
    find_unused_parameters: bool = False
    """Parameters may take no part in a step."""
    gradient_as_bucket_view: bool = True
    """Gradients are views of the buckets: one copy less."""


@frozen(kw_only=True)
class Distributed(_Section):
    """The process group."""

    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """auto: nccl on GPUs, gloo on CPUs."""
    init_timeout_min: Minutes = 30.0
    """How long stragglers are waited for at start-up."""
    collective_timeout_min: Minutes = 30.0
    """How long one collective may take."""
    interface: str | None = None
    """Network interface, e.g. ib0; unset: found out."""
    port_range: list[Annotated[int, Field(ge=1024, le=65535)]] = field(default_factory=lambda: [20000, 32000])
    """First and last port the leader may listen on."""
    start_method: Literal["forkserver", "spawn"] = "forkserver"
    """forkserver imports torch once per node; spawn is the way out when a library cannot be forked."""
    ddp: Ddp = field(default_factory=Ddp)
    """Options of DistributedDataParallel."""


@frozen(kw_only=True)
class Environment(_Section):
    """What workers find around them."""

    variables: dict[str, Text] = field(default_factory=_no_keys)
    """Environment variables: text, numbers, true or false, set as they are written; secrets belong into `pass`."""
    pass_: Annotated[list[str], Field(alias="pass")] = field(default_factory=_no_items)
    """Names of variables to take from the submitting environment; their values never reach a script or log."""
    setup: list[str] = field(default_factory=_no_items)
    """Shell lines run on each node before Python starts, e.g. "module load cuda/12.1"."""
    python: str | None = None
    """The interpreter; unset: the one that is active at submission."""
    container: str | None = None
    """An image for pyxis (SLURM's --container-image) or a .sif for Apptainer."""
    container_args: list[str] = field(default_factory=_no_items)
    """More arguments for the container runtime."""


@frozen(kw_only=True)
class Checkpointing(_Section):
    """When state is saved."""

    enabled: bool = True
    """Save checkpoints."""
    interval_steps: Count | None = None
    """Save every so many optimizer steps."""
    interval_min: Minutes | None = None
    """Save every so many minutes; neither interval: automatic, from measured cost."""
    min_interval_min: Minutes = 1.0
    """Automatic saving: never more often."""
    max_interval_min: Minutes = 30.0
    """Automatic saving: never more seldom."""
    keep_last: Annotated[int, Field(ge=2)] = 3
    """Checkpoints kept."""
    keep_every_steps: Count | None = None
    """Also keep those whose step is a multiple of this, for ever."""
    watch: str | None = None
    """A script's own checkpoints: files matching this pattern below the run directory count as progress."""


@frozen(kw_only=True)
class Restart(_Section):
    """How often and how long a run may come back."""

    max_restarts: Whole = 3
    """Restarts without new committed progress, each cause counted apart."""
    max_total_hours: Positive = 168.0
    """Hours of allocation over all attempts."""
    requeue: bool = True
    """Come back after preemption, time limit or node failure."""
    hang_detection: bool = True
    """Restart workers when nobody progresses for longer than the learned limit."""
    hang_floor_s: Positive = 60.0
    """The learned limit is never below this."""
    idle_timeout_min: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Give back an allocation that made no progress for so long; 0: never. Progress is a step, saving, evaluating; before
    the first step, and in scripts that report none, the use of GPUs (of CPUs, without GPUs) and files of checkpoint.watch."""
    max_at_risk_min: Minutes = 60.0
    """Go on this long while checkpoints cannot be written."""
    signal_lead_s: Annotated[int, Field(ge=5)] = 120
    """Seconds before the time limit at which saving for the next attempt begins."""


@frozen(kw_only=True)
class Mlflow(_Section):
    """MLflow (extra: mlflow)."""

    uri: str | None = None
    """Tracking server; unset: $MLFLOW_TRACKING_URI."""
    experiment: str | None = None
    """Experiment; unset: the job's name."""


@frozen(kw_only=True)
class Wandb(_Section):
    """Weights & Biases (extra: wandb)."""

    project: str | None = None
    """Project; unset: the job's name."""
    mode: Literal["online", "offline", "disabled"] | None = None
    """online, offline or disabled; unset: $WANDB_MODE, or online."""


@frozen(kw_only=True)
class Trackers(_Section):
    """Where metrics go beside the run's own files; never able to stop or slow training."""

    tensorboard: bool = False
    """Event files in the run's trackers/ (extra: tensorboard)."""
    mlflow: Mlflow | None = None
    """MLflow."""
    wandb: Wandb | None = None
    """Weights & Biases."""


@frozen(kw_only=True)
class Notify(_Section):
    """Who is told (extra: notify)."""

    urls: list[str] = field(default_factory=_no_items)
    """Names of environment variables that hold apprise URLs; the URLs themselves are secrets."""
    on: list[Literal["started", "preempted", "failed", "completed", "cancelled"]] = field(
        default_factory=lambda: ["started", "preempted", "failed", "completed"]
    )
    """Which of started, preempted, failed, completed, cancelled."""


@frozen(kw_only=True)
class After(_Section):
    """Start after other runs."""

    ok: list[str] = field(default_factory=_no_items)
    """Runs that must have completed."""
    any: list[str] = field(default_factory=_no_items)
    """Runs that must have ended."""
    fails: list[str] = field(default_factory=_no_items)
    """Runs that must have failed."""


@frozen(kw_only=True)
class Job(_Section):
    """A job: what to train, on which resources. Exactly one of task, function and script."""

    name: str | None = None
    """Name of its runs; unset: from what it runs."""
    task: str | None = None
    """module:Class, a subclass of launcher.Training."""
    function: str | None = None
    """module:name, called with a launcher.Worker."""
    script: str | None = None
    """A file, or "-m package.module"; any torchrun script, unmodified."""
    args: list[str | int | float | bool] = field(default_factory=_no_items)
    """Arguments of the script; ${params.x} and ${run.dir} may be used."""
    params: dict[str, Any] = field(default_factory=_no_keys)
    """Keyword arguments of the task or function; also for ${params.x}."""
    seed: Whole = 0
    """Seed of python, numpy and torch, and of the data order."""
    deterministic: bool = False
    """Ask torch for deterministic algorithms, as a bitwise resume on GPUs needs."""
    code: Code = field(default_factory=Code)
    """The code that is copied into the run."""
    resources: Resources = field(default_factory=Resources)
    """What the job needs."""
    slurm: Slurm = field(default_factory=Slurm)
    """How SLURM is asked."""
    distributed: Distributed = field(default_factory=Distributed)
    """The process group."""
    environment: Environment = field(default_factory=Environment)
    """What workers find around them."""
    checkpoint: Checkpointing = field(default_factory=Checkpointing)
    """When state is saved."""
    restart: Restart = field(default_factory=Restart)
    """How often and how long a run may come back."""
    sweep: dict[str, Any] = field(default_factory=_no_keys)
    """Lists of values by key path, e.g. params.lr: [0.1, 0.01]; array_parallelism: most points at once."""
    trackers: Trackers = field(default_factory=Trackers)
    """Where metrics go beside the run's own files."""
    notify: Notify = field(default_factory=Notify)
    """Who is told."""
    after: str | After | None = None
    """A run (it must have completed), or runs by ok, any, fails."""
    preflight: bool = True
    """Check nodes before the first round."""
    runs_dir: str | None = None
    """Where runs lie; unset: $LAUNCHER_RUNS_DIR, the site's, ./runs."""
    share: Literal["none", "group"] = "none"
    """Who may read the run's directory: none (0700) or group (0750)."""
