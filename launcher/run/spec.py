"""What the node side knows of a run: `RunSpec`, written by the submitting command, read by agents and workers.

Plain values only, JSON on disk. The config floor (pydantic, omegaconf) is never imported on a node.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from launcher.frozen import field_values, frozen
from launcher.opening import read_whole
from launcher.run.paths import SPEC_VERSION

CHECKED_FREE_BYTES = 1 << 30
"""What the preflight wants free where the run directory lies: asked for before the queue, too."""
CHECKED_FREE_INODES = 1000


@frozen(kw_only=True)
class Work:
    """What every worker runs."""

    kind: Literal["task", "function", "script", "module"]
    """task: a Training subclass; function: own loop over a Worker; script: a file; module: ``-m``."""
    target: str
    """``module:Class``, ``module:name``, a path relative to the code directory, or a module name."""
    args: list[str] = field(default_factory=list)
    """Arguments of a script or module, interpolated."""
    params: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of a task's or function's constructor."""


@frozen(kw_only=True)
class DdpSpec:
    """Keyword arguments of DistributedDataParallel."""

    bucket_cap_mb: float | None = None
    static_graph: bool = False
    find_unused_parameters: bool = False
    gradient_as_bucket_view: bool = True


@frozen(kw_only=True)
class CheckpointSpec:
    """When checkpoints are saved and how many are kept."""

    interval_steps: int | None = None
    interval_min: float | None = None
    """Neither interval: automatic (Young/Daly) between ``min_interval_min`` and ``max_interval_min``."""
    min_interval_min: float = 1.0
    max_interval_min: float = 30.0
    keep_last: int = 3
    keep_every_steps: int | None = None
    watch: str | None = None
    """A glob below the run directory; a script's own checkpoints, newer file = progress."""
    enabled: bool = True


@frozen(kw_only=True)
class RestartSpec:
    """How often and how long the run may come back."""

    max_restarts: int = 3
    """Restarts without new committed progress, each cause apart."""
    max_total_hours: float = 168.0
    """Sum over all attempts of the time an allocation was held."""
    requeue: bool = True
    queue_early: bool = False
    """The job of the next attempt is queued at the start, and held until this one's time limit."""
    hang_floor_s: float = 60.0
    """The learned hang limit is never below this."""
    hang_detection: bool = True
    idle_timeout_min: float = 0.0
    """An allocation without progress this long is given back; 0 is never."""
    max_at_risk_min: float = 60.0
    """Training goes on this long while checkpoints cannot be written."""
    signal_lead_s: int = 120
    """Seconds before the time limit at which SLURM sends USR2."""


@frozen(kw_only=True)
class SiteSpec:
    """What the submitting command found out about the site and the node side needs."""

    grace_s: int = 0
    kill_wait_s: int = 30
    preempt_mode: str = "OFF"
    """REQUEUE, CANCEL, SUSPEND, GANG or OFF, of the partition."""
    requeue_allowed: bool = True
    """JobRequeue=1: ``scontrol requeue`` from inside the job is accepted."""
    has_epilog: bool = False
    ages_held_jobs: bool = False
    """Jobs that are held gain priority by age."""


@frozen(kw_only=True)
class RunSpec:
    """Everything an agent, leader or worker needs; constant over a run, replaced by ``resubmit``."""

    version: int = SPEC_VERSION
    """`launcher.run.paths.SPEC_VERSION` of the launcher that wrote it."""
    id: str
    name: str
    run_dir: str
    work: Work
    batch: Literal["slurm", "local"]
    """Who starts the agents."""
    nodes: int
    """Nodes in use by a round where all are there; the allocation has up to ``nodes + spare_nodes``."""
    least_nodes: int | None = None
    """Nodes without which no round begins; None: as many as ``nodes``."""
    spare_nodes: int = 0
    replace: bool = False
    """A one-node job is submitted for each node that is missing."""
    tasks_per_node: int
    """Workers per node."""
    gpus_per_node: int = 0
    cpus_per_task: int = 1
    """CPUs per worker."""
    mem_gb: float | None = None
    timeout_min: int
    """Time limit of one attempt."""
    backend: Literal["nccl", "gloo"]
    init_timeout_min: float = 30.0
    collective_timeout_min: float = 30.0
    interface: str | None = None
    port_range: list[int] = field(default_factory=lambda: [20000, 32000])
    """First and last port on which the leader may listen; the handshake tells it from other programs."""
    start_method: Literal["forkserver", "spawn"] = "forkserver"
    ddp: DdpSpec = DdpSpec()
    seed: int = 0
    deterministic: bool = False
    variables: dict[str, str] = field(default_factory=dict)
    """``environment.variables``: set in agents before torch is imported."""
    pass_names: list[str] = field(default_factory=list)
    code_dir: str = ""
    """Working directory of workers: the snapshot (or the original where it is linked)."""
    python: str = ""
    """The interpreter of agents and workers, absolute."""
    setup: list[str] = field(default_factory=list)
    """``environment.setup``: the batch script runs it; a rerun's fork server is started with its own."""
    code_path: list[str] = field(default_factory=list)
    """Of a rerun: folders of its copy of the code from which editable packages are imported."""
    hold: bool = False
    """The run only keeps its allocation: others, its reruns, train in it."""
    held_by: str | None = None
    """The id of the hold in whose allocation this run, a rerun, trains."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    restart: RestartSpec = RestartSpec()
    site: SiteSpec = SiteSpec()
    trackers: dict[str, Any] = field(default_factory=dict)
    """tensorboard: {}, mlflow: {uri, experiment}, wandb: {project, mode}; present means wanted."""
    notify: dict[str, Any] = field(default_factory=dict)
    preflight: bool = True
    container: str | None = None
    container_args: list[str] = field(default_factory=list)
    mounts: list[str] = field(default_factory=list)
    """Folders of the code that a container is given besides the run's own."""
    share: Literal["none", "group"] = "none"
    resume: str | None = None
    """A checkpoint to start from when this run has none of its own (``--fork``), absolute."""
    resume_step: int | None = None
    """``resubmit --from STEP``: checkpoints beyond it are set aside by the leader before it resumes."""
    unsafe_load: bool = False
    """``resubmit --unsafe-load``: a checkpoint that cannot be loaded safely is unpickled in full."""
    after: list[dict[str, Any]] = field(default_factory=list)
    """Runs that must have ended first: kind, run_dir, job_id (`launcher.run.after`)."""
    stop_after_steps: int | None = None
    """Rehearsals: end as completed after this many optimizer steps."""
    kill_at: list[int] | None = None
    """Rehearsals: [rank, step]; that rank ends by SIGKILL after that step, unless it was resumed."""

    @property
    def all_nodes(self) -> int:
        """Number of nodes of the allocation, spares included."""
        return self.nodes + self.spare_nodes

    @property
    def replacement_name(self) -> str:
        """SLURM's name of the jobs that replace nodes of this run."""
        return f"{self.id}+node"

    @property
    def needed_nodes(self) -> int:
        """Nodes without which no round begins."""
        return self.nodes if self.least_nodes is None else min(self.least_nodes, self.nodes)

    @property
    def smallest_allocation(self) -> int:
        """Nodes without which SLURM does not start the job: all of them, spares included, unless it takes a range."""
        return self.all_nodes if self.needed_nodes == self.nodes else self.needed_nodes

    @property
    def world_size(self) -> int:
        """Number of ranks of a full round."""
        return self.nodes * self.tasks_per_node

    def dumps(self) -> str:
        """As JSON, one line: indenting makes json ten times slower, and sweeps write a thousand."""
        return json.dumps(field_values(self), default=field_values) + "\n"

    def write(self, path: Path) -> None:
        """Write as JSON at ``path``, durably, replacing what is there."""
        from launcher.run.files import write_atomic

        write_atomic(path, self.dumps())

    @classmethod
    def read(cls, path: Path) -> RunSpec:
        """Read what `write` wrote; unknown keys of newer versions are ignored.

        Raises OSError when the file cannot be read and ValueError when it is no spec.
        """
        spec: RunSpec = _build(cls, json.loads(read_whole(path)))
        return spec


_NESTED: dict[str, Any] = {
    "work": Work,
    "ddp": DdpSpec,
    "checkpoint": CheckpointSpec,
    "restart": RestartSpec,
    "site": SiteSpec,
}


def _build(cls: Any, data: dict[str, Any]) -> Any:
    if not isinstance(data, dict):
        raise ValueError(f"{cls.__name__}: expected an object, got {type(data).__name__}")
    values = {f.name: data[f.name] for f in dataclasses.fields(cls) if f.name in data}
    if cls is RunSpec:
        values |= {key: _build(nested, values[key]) for key, nested in _NESTED.items() if key in values}
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(f"{cls.__name__}: {error}") from None
