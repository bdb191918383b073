"""What `submit`, `run` and `resubmit` share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import click

if TYPE_CHECKING:
    from launcher.config.load.load import LoadedJob
    from launcher.run.after import Predecessor
    from launcher.submission.submit import Submitted
    from launcher.submission.sweeps.submit_sweep import SubmittedSweep

__all__ = ["chained", "submit_job", "submit_sweep"]


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


def submit_job(
    loaded: LoadedJob,
    backend: Literal["auto", "slurm", "local"],
    after: Sequence[Predecessor] = (),
    *,
    foreground: bool = False,
) -> Submitted:
    """Plan and execute: what is printed by `plan` is what is submitted."""
    from launcher.submission.dependencies import predecessors, waiting
    from launcher.submission.facts.facts import Facts
    from launcher.submission.facts.gather import gather
    from launcher.submission.plan.plan import SubmissionPlan, plan
    from launcher.submission.submit import execute

    facts = gather(loaded, backend=backend, after=[*after, *predecessors(loaded.job.after)])

    def make(now: Facts) -> SubmissionPlan:
        made = plan(loaded, now)
        waiting(list(now.after), made.backend)
        return made

    return execute(make, facts, argv=sys.argv, foreground=foreground)


def submit_sweep(loaded: LoadedJob, backend: Literal["auto", "slurm", "local"]) -> SubmittedSweep:
    """The same for a sweep: one array."""
    from launcher.submission.dependencies import predecessors, waiting
    from launcher.submission.facts.gather import gather
    from launcher.submission.sweeps.submit_sweep import execute

    after = predecessors(loaded.job.after)
    waiting(after, "slurm")
    return execute(loaded, gather(loaded, backend=backend, after=after), sys.argv)
