"""Chooses the hosts that SLURM is to keep the next attempt off, as far as the job can start without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.node.allocation.exclusions import affordable, excluded_before, schedulable_without
from launcher.run import clock, event_lines
from launcher.run.events import Event, Requeued, RunSubmitted
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.slurm import handback
from launcher.slurm.commands import ask
from launcher.slurm.environ import JobEnviron

_ASK_S = 5.0


def choose_excluded(
    hosts: tuple[str, ...],
    nodes: tuple[int, int] | None,
    *,
    job: JobEnviron,
    spec: RunSpec,
    paths: RunPaths,
    environ: Mapping[str, str],
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Return what to exclude, the user's own hosts included (None: no change), and the hosts that are given up.

    ``hosts`` failed now. ``nodes``: how many the next attempt asks for, at least and at most (None: as before).
    """
    told = event_lines.read(paths.events)
    before = excluded_before(told, clock.now())
    if not (hosts or before):
        return None, ()
    wishes = handback.wishes(job.own_id)
    if (least_most := nodes or _asked_before(told)) is not None:  # the script's range counts no more
        wishes["nodes"] = "-".join(map(str, least_most))
    users = tuple(h for h in handback.excluded(wishes) if h not in before and h not in hosts)
    wanted = (*(h for h, counts in before.items() if counts and h not in hosts), *hosts)

    def could_start(these: Sequence[str]) -> bool:
        return _could_start({**wishes, "exclude": ",".join((*users, *these))}, job, spec, paths, environ)

    kept = affordable(wanted, could_start)
    return (*users, *kept), wanted[: len(wanted) - len(kept)]


def _asked_before(told: Sequence[Event]) -> Sequence[int] | None:
    """Return the nodes that an earlier hand-over of this submission asked for."""
    for event in reversed(told):
        if isinstance(event, RunSubmitted):
            break
        if isinstance(event, Requeued) and event.nodes:
            return event.nodes
    return None


def _could_start(
    options: Mapping[str, str], job: JobEnviron, spec: RunSpec, paths: RunPaths, environ: Mapping[str, str]
) -> bool:
    """Return whether SLURM could ever start the job with these options of sbatch."""
    # Limits count every element of an array.
    element = {} if job.array_task_id is None else {"array": str(job.array_task_id)}
    said = handback.could_start(str(paths.sbatch), {**options, **element}, environ=environ)
    if said is not None:
        return said
    if options.keys() & {"constraint", "nodelist", "reservation"}:  # counting hosts would prove nothing
        return False
    partition = [f"--partition={job.partition}"] if job.partition else []
    answer = ask("sinfo", "--noheader", "--Node", *partition, "--format=%N %t", timeout_s=_ASK_S)
    return answer.ok and schedulable_without(answer.out, options["exclude"].split(","), spec.smallest_allocation)
