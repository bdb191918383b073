"""Take an allocation for runs that are to train in it one after the other (``launcher hold``)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from launcher.config.document.schema import Job, Trackers
from launcher.config.load.load import LoadedJob
from launcher.errors import ConfigError, SubmitError
from launcher.node.checkpoints.claims import newest_claimant
from launcher.run import index
from launcher.slurm.environ import job_environ
from launcher.submission import submit
from launcher.submission.facts.facts import BackendName
from launcher.submission.facts.gather import gather_facts
from launcher.submission.plan.plan import choose_backend, plan
from launcher.submission.rehearsal.stages import Step, hosts_around

IDLE_MIN = 30.0
"""A hold in which nothing ran for so long ends, unless the job sets ``restart.idle_timeout_min``."""


def submit_hold(loaded: LoadedJob, backend: BackendName, argv: Sequence[str]) -> submit.Submitted:
    """Submit a hold with the resources of the job; inside an allocation of SLURM (salloc) start it there.

    Raises as `launcher.submission.submit.submit_run`, ConfigError for a sweep, and SubmitError where an allocation does not tell its hosts.
    """
    if loaded.job.sweep:
        raise ConfigError("sweep: a hold runs one job after the other; submit the sweep, or name one point's values")
    facts = replace(gather_facts(loaded, backend=backend), run_id=index.new_id(f"hold-{loaded.name}"), hold=True)
    inside = choose_backend(facts) == "slurm" and job_environ().inside
    kept = replace(loaded, job=_holding(loaded.job, len(hosts_around()) if inside else 0))
    make = partial(plan, kept)
    if not inside:
        return submit.submit_run(make, facts, argv=argv)
    submitted = submit.submit_run(make, facts, argv=argv, job_id=job_environ().job_id)
    step = Step(submitted.plan, submitted.job_id)
    step.start()  # it outlives this command, and ends with the allocation
    _await_leader(submitted, step)
    return submitted


def _await_leader(submitted: submit.Submitted, step: Step) -> None:
    """Wait until the leader has begun. Raises SubmitError when the step has ended before: there is no job whose end would tell."""
    while not newest_claimant(submitted.paths):
        if not step.alive():
            said = step.said()
            submit.forget_run(submitted.paths)
            raise SubmitError(f"{submitted.plan.spec.id} could not start: {said or 'srun has ended'}")
        time.sleep(0.1)


def _holding(job: Job, nodes: int) -> Job:
    """Return the job as one that only holds its nodes (of those around this process, all ``nodes``)."""
    resources = replace(job.resources, replace=False)
    if nodes:
        resources = replace(resources, nodes=nodes, spare_nodes=0)
    idle_min = job.restart.idle_timeout_min or IDLE_MIN
    restart = replace(job.restart, requeue=False, queue_early=False, idle_timeout_min=idle_min)
    return replace(job, resources=resources, restart=restart, trackers=Trackers())
