"""What `submit`, `run` and `resubmit` share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import click

from launcher.errors import ConfigError, StateError
from launcher.run.paths import RunPaths

if TYPE_CHECKING:
    from launcher.config.load import LoadedJob
    from launcher.submission.submit import Submitted
    from launcher.submission.sweeps import SubmittedSweep

__all__ = ["after_of", "chained", "submit_job", "submit_sweep"]

_KINDS = {"ok": "afterok", "any": "afterany", "fails": "afternotok"}


def chained(words: Sequence[str]) -> list[list[str]]:
    """The jobs of ``a.yaml then b.yaml``, each with its own overrides."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == "then":
            parts.append([])
        else:
            parts[-1].append(word)
    if len(parts) > 1 and not all(parts):
        raise click.UsageError("'then' stands between two jobs.")
    return parts


def after_of(loaded: LoadedJob) -> list[tuple[str, str]]:
    """The job's ``after`` as SLURM dependencies. Raises ConfigError when a run there is not one of SLURM's."""
    from launcher.run import index
    from launcher.submission.where import locate

    after = loaded.job.after
    if after is None:
        return []
    named = {"ok": [after]} if isinstance(after, str) else {"ok": after.ok, "any": after.any, "fails": after.fails}
    found = []
    for kind, runs in named.items():
        for run in runs:
            where = locate(RunPaths(index.resolve(run)))
            if where.backend != "slurm":
                raise ConfigError(
                    f"after: {run} runs on this machine without SLURM; only SLURM's jobs can be waited for"
                )
            found.append((_KINDS[kind], where.job_id))
    return found


def submit_job(
    loaded: LoadedJob,
    backend: Literal["auto", "slurm", "local"],
    after: Sequence[tuple[str, str]] = (),
    *,
    foreground: bool = False,
) -> Submitted:
    """Plan and execute: what is printed by `plan` is what is submitted."""
    from launcher.submission.facts import Facts
    from launcher.submission.gather import gather
    from launcher.submission.plan import SubmissionPlan, plan
    from launcher.submission.submit import execute

    facts = gather(loaded, backend=backend, after=after)

    def make(now: Facts) -> SubmissionPlan:
        made = plan(loaded, now)
        if after and made.backend == "local":
            raise StateError("waiting for another run needs SLURM; on this machine start one after the other")
        return made

    return execute(make, facts, argv=sys.argv, foreground=foreground)


def submit_sweep(
    loaded: LoadedJob, backend: Literal["auto", "slurm", "local"], after: Sequence[tuple[str, str]] = ()
) -> SubmittedSweep:
    """The same for a sweep: one array."""
    from launcher.submission.gather import gather
    from launcher.submission.sweeps import execute

    return execute(loaded, gather(loaded, backend=backend, after=after), sys.argv)
