"""What the nodes need of a job: the keys that they know by the same name, and what planning works out.

The schema declares the keys. `RunSpec` takes those of `SECTIONS` that it has a field for; whatever else it holds is in
`DERIVED` or `OWN`, and a key that stays with the command is in `COMMAND_ONLY`. A test finds a key that is in none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from functools import cache, partial
from operator import attrgetter
from pathlib import PurePath
from typing import Any, Literal

from launcher.config.document.schema import Job
from launcher.config.load.interpolate import interpolate_run
from launcher.config.load.load import LoadedJob, argument_texts
from launcher.run.spec import CheckpointSpec, DdpSpec, RestartSpec, RunSpec, Work
from launcher.submission.facts.facts import Facts

SECTIONS = ("", "resources", "distributed")
"""Sections of the job (its top level is "") whose keys are fields of `RunSpec`."""
DERIVED = {
    "resources.nodes": "least_nodes", "task": "work", "function": "work", "script": "work", "args": "work", "params": "work",
    "environment.variables": "variables", "environment.pass_": "pass_names", "environment.python": "python", "environment.setup": "setup",
    "environment.container": "container", "environment.container_args": "container_args", "code.link": "mounts",
    "notify.urls": "notify", "notify.on": "notify",
    "trackers.tensorboard": "trackers", "trackers.mlflow": "trackers", "trackers.wandb": "trackers",
}  # fmt: skip
"""Keys of the job that reach the nodes in another form: the field of `RunSpec` that holds each."""
OWN = ("version", "id", "run_dir", "batch", "code_dir", "site", "resume", "resume_step", "unsafe_load",
       "stop_after_steps", "kill_at", "code_path", "hold", "held_by")  # fmt: skip
"""Fields of `RunSpec` that no key of the job sets."""
COMMAND_ONLY = ("code.", "slurm.", "sweep", "runs_dir", "environment.stage")
"""Keys and sections that the nodes do not need."""


def node_spec(loaded: LoadedJob, facts: Facts, backend: Literal["slurm", "local"], run_dir: str) -> RunSpec:
    """Project ``loaded`` onto what the nodes need, for a run in ``run_dir``."""
    job, gpus = loaded.job, loaded.job.resources.gpus_per_node
    run_id = PurePath(run_dir).name
    fill = partial(interpolate_run, run_dir=run_dir, run_id=run_id, name=loaded.name)
    chosen = job.distributed.backend
    values = {k: v for name in SECTIONS for k, v in _same(RunSpec, getattr(job, name) if name else job).items()}
    values |= {
        "id": run_id,
        "name": loaded.name,
        "run_dir": run_dir,
        "work": _work(job, fill),
        "batch": backend,
        "nodes": job.resources.most_nodes,
        "least_nodes": job.resources.least_nodes if isinstance(job.resources.nodes, str) else None,
        "tasks_per_node": job.resources.tasks_per_node or gpus or 1,
        "timeout_min": int(job.resources.timeout_min),
        "backend": chosen if chosen != "auto" else "nccl" if gpus else "gloo",
        "ddp": DdpSpec(**_same(DdpSpec, job.distributed.ddp)),
        "variables": fill(job.environment.variables),
        "pass_names": list(dict.fromkeys([*job.environment.pass_, *job.notify.urls])),
        "code_dir": f"{run_dir}/code",
        "python": facts.interpreter.path,
        "setup": list(job.environment.setup),
        "checkpoint": CheckpointSpec(**_same(CheckpointSpec, job.checkpoint)),
        "restart": RestartSpec(**_same(RestartSpec, job.restart)),
        "site": facts.slurm.site,
        "trackers": _trackers(job, loaded.name),
        "notify": {"urls": list(job.notify.urls), "on": list(job.notify.on)} if job.notify.urls else {},
        "hold": facts.hold,
        "container": (image := facts.image or job.environment.container),
        "container_args": list(job.environment.container_args) if image else [],
        "mounts": code_mounts(job, facts.code.root) if image else [],
        "after": [asdict(one) for one in facts.after],
    }
    return RunSpec(**values)


def code_mounts(job: Job, root: str) -> list[str]:
    """Return what a container must see of the code in ``root``: all of it, or what the run's copy links to."""
    return [PurePath(root, name).as_posix() for name in job.code.link] if job.code.snapshot else [root]


def _same(spec: Any, section: Any) -> dict[str, Any]:
    """Return the section's values that ``spec`` has a field of the same name for."""
    names = _common(spec, section.__class__)
    return dict(zip(names, attrgetter(*names)(section), strict=True))


@cache
def _common(one: type, other: type) -> list[str]:
    """Return the fields that both have: the same for each of a sweep's thousand points."""
    known = {f.name for f in fields(one)}
    return [f.name for f in fields(other) if f.name in known]


def _work(job: Job, fill: Callable[[Any], Any]) -> Work:
    args = argument_texts(fill(list(job.args)))
    params = fill(dict(job.params))
    if job.task:
        return Work(kind="task", target=job.task, params=params)
    if job.function:
        return Work(kind="function", target=job.function, params=params)
    name = job.script or ""
    if name.startswith("-m"):
        return Work(kind="module", target=name[2:].strip(), args=args, params=params)
    return Work(kind="script", target=name, args=args, params=params)


def _trackers(job: Job, name: str) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    if job.trackers.tensorboard:
        wanted["tensorboard"] = {}
    if job.trackers.mlflow is not None:
        wanted["mlflow"] = {"uri": job.trackers.mlflow.uri, "experiment": job.trackers.mlflow.experiment or name}
    if job.trackers.wandb is not None:
        wanted["wandb"] = {"project": job.trackers.wandb.project or name, "mode": job.trackers.wandb.mode}
    return wanted
