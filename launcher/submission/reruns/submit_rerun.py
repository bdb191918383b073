"""Make a run that trains in the allocation of a hold (``launcher rerun``): your current code, in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import Any

from launcher.config.document.schema import Job
from launcher.config.document.source import COMMAND_LINE
from launcher.config.load.load import LoadedJob
from launcher.errors import ConfigError, StateError
from launcher.run.own_folder import require_own
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.run.state import read_submission
from launcher.run.units import plural
from launcher.submission import submit
from launcher.submission.facts.facts import Facts, SlurmFacts
from launcher.submission.facts.gather import gather_facts
from launcher.submission.folder import make_folder, snapshot
from launcher.submission.folder.run_folder import write_environment, write_own
from launcher.submission.liveness import spec_of
from launcher.submission.plan.plan import plan
from launcher.submission.plan.submission_plan import SubmissionPlan


def hold_of(paths: RunPaths) -> RunPaths:
    """Return the hold that a run is, or in which it trains or trained. Raises StateError where it is neither, and RunDirError."""
    require_own(paths.root)
    spec = spec_of(paths)
    if spec.hold:
        return paths
    if spec.held_by is None:
        raise StateError(f"{paths.id} is no hold: launcher hold JOB takes an allocation for reruns")
    hold = paths.beside(spec.held_by)
    if not hold.spec.exists():
        raise StateError(
            f"{paths.id} trained in {spec.held_by}, whose folder is gone: launcher hold JOB takes a new allocation"
        )
    return hold


def make_rerun(
    loaded: LoadedJob,
    hold: RunPaths,
    argv: Sequence[str],
    recorded: Callable[[submit.Submitted], None] = lambda _: None,
) -> submit.Submitted:
    """Make the folder of a run that is to train in ``hold``; nothing is started. ``recorded``: as `submit_run` takes it.

    Raises ConfigError where the hold has too little for the job, and as `launcher.submission.submit.submit_run`.
    """
    if loaded.job.sweep:
        raise ConfigError("sweep: a hold runs one job after the other; name one point's values")
    spec = spec_of(hold)
    before = read_submission(hold.submission)
    told = loaded.origin.get("restart.max_restarts")
    attended = told is None or told.source != COMMAND_LINE  # somebody waits: what fails is told at once
    kept = replace(loaded, job=_as_rerun(loaded.job, attended=attended))
    slurm = SlurmFacts(found=True, site=spec.site) if spec.batch == "slurm" else SlurmFacts()
    facts = gather_facts(kept, backend=spec.batch, slurm=slurm, lies_in=hold.root.parent)

    def make(now: Facts) -> SubmissionPlan:
        return _in_hold(plan(kept, now), spec)

    where: dict[str, Any] = {
        name: before.get(name) for name in ("pid", "pid_started", "host", "job_name", "job_folder")
    }
    return submit.submit_run(
        make, facts, job_id=str(before.get("job_id") or ""), recorded=recorded, write=partial(_write, hold=hold, argv=argv),
        by="rerun", hold=hold.id, **where,
    )  # fmt: skip


def _as_rerun(job: Job, *, attended: bool) -> Job:
    restarts = 0 if attended else job.restart.max_restarts
    restart = replace(job.restart, requeue=False, queue_early=False, max_restarts=restarts)
    return replace(
        job,
        resources=replace(job.resources, replace=False),
        environment=replace(job.environment, stage=False),  # the hold's agents have theirs
        restart=restart,
        preflight=False,
        runs_dir=None,
        after=None,
    )


def _in_hold(made: SubmissionPlan, hold: RunSpec) -> SubmissionPlan:
    """Return the plan of a run in ``hold``. Raises ConfigError where it asks for more than the hold has."""
    spec, where = made.spec, hold.id
    cpus, kept_cpus = spec.tasks_per_node * spec.cpus_per_task, hold.tasks_per_node * hold.cpus_per_task
    checks = (
        (spec.needed_nodes > hold.all_nodes, "resources.nodes", plural(spec.needed_nodes, "node"), str(hold.all_nodes)),
        (spec.gpus_per_node > hold.gpus_per_node, "resources.gpus_per_node", plural(spec.gpus_per_node, "GPU") + " a node",
         str(hold.gpus_per_node)),
        (cpus > kept_cpus, "resources.cpus_per_task", f"{spec.tasks_per_node} x {spec.cpus_per_task} = {cpus} CPUs a node",
         str(kept_cpus)),
        ((spec.mem_gb or 0) > (hold.mem_gb or spec.mem_gb or 0), "resources.mem_gb", f"{spec.mem_gb or 0:g} GB a node",
         f"{hold.mem_gb or 0:g}"),
    )  # fmt: skip
    problems = [
        f"{key}: the job asks for {wanted}, {where} has {has}" for exceeds, key, wanted, has in checks if exceeds
    ]
    if spec.setup[: len(hold.setup)] != hold.setup:
        problems.append(
            f"environment.setup: {where} has run other lines, and only lines after those can be added: take a new hold"
        )
    if problems := [*problems, *_of_container(made, hold)]:
        raise ConfigError(problems)
    restart = replace(spec.restart, signal_lead_s=hold.restart.signal_lead_s)
    # A range keeps its upper end: the samples of a step are for so many nodes, on however few it trains.
    spares = max(0, min(spec.spare_nodes, hold.all_nodes - spec.nodes))
    spec = replace(
        spec, held_by=hold.id, spare_nodes=spares, restart=restart, timeout_min=hold.timeout_min,
        code_path=list(made.python_path[1:]),
    )  # fmt: skip
    return replace(made, spec=spec)


def _of_container(made: SubmissionPlan, hold: RunSpec) -> Iterator[str]:
    """Yield what the job wants of a container that the hold's agents are not in: they stay in theirs."""
    spec, where = made.spec, hold.id
    if spec.container != hold.container:
        yield f"environment.container: {where} is in {hold.container or 'no container'}: take a new hold"
    elif spec.container:
        if spec.container_args != hold.container_args:
            yield f"environment.container_args: the container of {where} was started with others: take a new hold"
        for path in spec.mounts:
            if not any(PurePath(path).is_relative_to(mounted) for mounted in hold.mounts):
                key = "code.link" if made.snapshot else "code.snapshot"
                yield f"{key}: {path} is not mounted in the container of {where}: take a new hold"


def _write(made: SubmissionPlan, hold: RunPaths, argv: Sequence[str]) -> None:
    """Fill the folder; what is the same as in the hold's is linked, not copied."""
    paths = made.paths
    snapshot.copy_code(
        made.code,
        paths.code,
        made.link,
        snapshot=made.snapshot,
        mode=make_folder.mode_of(made.spec.share),
        like=hold.code,
    )
    snapshot.link_launcher(hold.lib, paths.lib)
    write_environment(paths.root, made, argv)
    write_own(made, by="submit", new=True)
