"""``plan(job, facts)``: work out everything that will be submitted. Pure: opens no file, starts no process.

What it must know of this machine comes in as `Facts`. `launcher plan` prints what it returns, `launcher submit` submits it.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import replace
from pathlib import PurePath
from typing import Literal

from launcher.config.document.schema import Job
from launcher.config.load.load import LoadedJob
from launcher.errors import ConfigError, InterpreterError, RunDirError, SiteError
from launcher.redact import redact
from launcher.run.spec import CHECKED_FREE_BYTES, CHECKED_FREE_INODES, RunSpec
from launcher.run.units import plural, size
from launcher.submission.facts.facts import CodeFacts, Facts
from launcher.submission.plan import describe, limits, script
from launcher.submission.plan.job_place import JobPlace
from launcher.submission.plan.node_spec import node_spec
from launcher.submission.plan.submission_plan import SubmissionPlan

_SPACE_RESERVE = 64 * 1024**2


def plan(
    loaded: LoadedJob,
    facts: Facts,
    *,
    run_dir: str | None = None,
    place: JobPlace | None = None,
    job_yaml: str | None = None,
) -> SubmissionPlan:
    """Work out what submitting ``loaded`` does, given ``facts``.

    ``run_dir`` names the folder of a run that exists already (a resubmission) or of a point of a sweep, whose shared
    ``place`` is given too; its last part is the run's id. ``job_yaml`` is ``loaded.yaml`` where that is known already.
    Raises SiteError, InterpreterError, RunDirError or ConfigError where it could not work.
    """
    job, backend = loaded.job, choose_backend(facts)
    if backend == "local":
        facts = replace(facts, staged=None)  # this machine has the environment
    if facts.image is not None:
        job = replace(job, environment=replace(job.environment, container=facts.image))
    run_dir = run_dir or f"{facts.runs_dir}/{facts.run_id}"
    link, snapshot = tuple(PurePath(p).as_posix().rstrip("/") for p in job.code.link), job.code.snapshot
    with loaded.placing():
        _check(job, facts, backend)
        _check_in_snapshot(job, facts.code, link)
        spec = node_spec(loaded, facts, backend, run_dir)
        if backend == "slurm":
            limits.check_limits(job, spec, facts.slurm.partition)
            if spec.restart.queue_early and facts.slurm.known and not spec.site.ages_held_jobs:
                raise ConfigError(
                    "restart.queue_early: SLURM does not age held jobs here (PriorityFlags lacks ACCRUE_ALWAYS), so it would gain "
                    "nothing; remove this key"
                )
        place = place or JobPlace(run_dir, spec.id, shlex.quote(run_dir))
        # gres works everywhere, --gpus-per-node only with select/cons_tres
        gpu_request = "gres" if "gres" in (loaded.site.gpu_request, facts.slurm.gpu_request) else "gpus-per-node"
        python_path = (f"{place.root}/lib", *_editable_inside(facts, place.root, snapshot))
        command = script.python_command(job, spec, facts, python_path, place)
        parameters = script.parameters(job, spec, facts, gpu_request, command, python_path, place)
    made = SubmissionPlan(
        backend=backend,
        spec=spec,
        code=facts.code,
        link=link,
        snapshot=snapshot,
        staged=facts.staged,
        python_path=python_path,
        command=command,
        parameters=parameters,
        job_yaml=loaded.yaml if job_yaml is None else job_yaml,
        base_dir=str(loaded.base_dir),
        submit_dir=facts.submit_dir,
        warnings=tuple(map(redact, describe.plan_warnings(spec, facts, job.slurm.partition))),
        gpu_hours=_hours(spec, spec.timeout_min / 60),
        gpu_hours_max=_hours(spec, spec.restart.max_total_hours),
        runs_dir=facts.runs_dir,
        interpreter=facts.interpreter,
        max_code_mb=job.code.max_mb,
        place=place,
    )
    return replace(made, summary=tuple(map(redact, describe.plan_summary(job, made, facts))))


def sibling(first: SubmissionPlan, loaded: LoadedJob, facts: Facts, *, run_dir: str, job_yaml: str) -> SubmissionPlan:
    """Plan another point of ``first``'s array: everything that a sweep may not vary is first's, its script too.

    Raises ConfigError where the point's script would be missing from the copy of the code.
    """
    spec = node_spec(loaded, facts, first.backend, run_dir)
    if spec.work.target != first.spec.work.target:
        with loaded.placing():
            _check_in_snapshot(loaded.job, facts.code, first.link)
    return replace(first, spec=spec, job_yaml=job_yaml)


def choose_backend(facts: Facts) -> Literal["slurm", "local"]:
    """Choose SLURM where there are traces of it, so that nobody trains on a login node by accident. Raises SiteError."""
    if facts.backend == "local" or facts.slurm.found:
        return "local" if facts.backend == "local" else "slurm"
    if facts.backend == "slurm":
        raise SiteError(f"--backend slurm: {facts.slurm.unusable or 'there is no trace of SLURM on this machine'}")
    if facts.slurm.unusable:
        raise SiteError(f"{facts.slurm.unusable}, or add --backend local to train on this machine")
    return "local"


def _check(job: Job, facts: Facts, backend: str) -> None:
    """Refuse a job that this machine, its interpreter, its image or the place of its runs could not serve."""
    wanted, nodes = job.resources.gpus_per_node, job.resources.most_nodes + job.resources.spare_nodes
    if backend == "local" and wanted * nodes > facts.gpus_here:
        has = plural(facts.gpus_here, "GPU") if facts.gpus_here else "no GPU"
        raise ConfigError(
            f"resources.gpus_per_node: the job asks for {wanted} GPUs a node{f' on {nodes} nodes' if nodes > 1 else ''}, "
            f"this machine has {has}; add resources.gpus_per_node=0 to train on its CPUs"
        )
    python = facts.interpreter
    if python.checked:
        named = f"{python.path} ({python.origin})"
        if python.error:
            raise InterpreterError(f"{named} cannot be used: {python.error}")
        if missing := [name for name in ("torch", "submitit", "psutil") if name not in python.packages]:
            raise InterpreterError(
                f"{named} has no {' and no '.join(missing)}: pip install {' '.join(missing)} there, activate the environment "
                "that has it, or set environment.python"
            )
    if facts.staged and not facts.staged.roots:
        raise ConfigError(
            f"environment.stage: {python.path} and its packages are the system's own, which each node has; remove this key"
        )
    if facts.image_missing:
        raise ConfigError(f"environment.container: {facts.image} was not found")
    if re.search(r"[%\\\x00-\x1f\x7f]", facts.runs_dir):  # sbatch would replace %j and its kin inside log names
        raise RunDirError(f"runs_dir: {facts.runs_dir!r} must not contain a %, a backslash or a control character")
    need = facts.code.size + (CHECKED_FREE_BYTES if job.preflight else _SPACE_RESERVE)
    if facts.free_bytes is not None and facts.free_bytes < need:
        raise RunDirError(
            f"{facts.runs_dir}: {size(facts.free_bytes)} free, a run needs at least {size(need)}; "
            "set runs_dir or $LAUNCHER_RUNS_DIR to another place"
        )
    if facts.free_inodes is not None and facts.free_inodes < len(facts.code.files) + CHECKED_FREE_INODES:
        raise RunDirError(
            f"{facts.runs_dir}: only {facts.free_inodes} inodes free, a run needs more; set runs_dir to another place"
        )


def _check_in_snapshot(job: Job, code: CodeFacts, link: tuple[str, ...]) -> None:
    """Refuse a script that git ignores: it would be missing from the copy, after hours in the queue."""
    name = job.script or ""
    if not (job.code.snapshot and code.git and name) or name.startswith(("-m", "/")):
        return
    path = posixpath.normpath(name)
    for within, target in code.inside:  # what a link leads to is listed there
        if path.startswith(f"{within}/"):
            path = posixpath.relpath(target, code.root) + path.removeprefix(within)
    if path not in dict(code.files) and not path.startswith(tuple(f"{folder}/" for folder in link)):
        raise ConfigError(
            f"script: {path} would not be in the copy of the code: git ignores it. Remove it from .gitignore, or set "
            "code.snapshot=false"
        )


def _editable_inside(facts: Facts, root: str, snapshot: bool) -> tuple[str, ...]:
    """Return the copies of editable packages inside the code: without them later edits would be imported."""
    own = PurePath(facts.code.root)  # itself first on sys.path anyway
    sources = [PurePath(source) for _, source in facts.interpreter.editable] if snapshot else []
    return tuple(dict.fromkeys(f"{root}/code/{p.relative_to(own).as_posix()}" for p in sources if own in p.parents))


def _hours(spec: RunSpec, hours: float) -> float:
    per_node = spec.gpus_per_node or spec.tasks_per_node * spec.cpus_per_task
    return round(spec.all_nodes * per_node * hours, 2)
