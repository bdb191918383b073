"""Which hosts the next attempt must not use: those that failed in the last day, as far as SLURM can start without them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

from launcher.run import clock, event_lines
from launcher.run.events import Event, Excluded, Readmitted, Requeued, RunSubmitted
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.slurm import handback
from launcher.slurm.commands import ask
from launcher.slurm.environ import JobEnviron

_EXCLUDED_S = 86400.0
_ASK_S = 5.0
_GONE = ("down", "drain", "drng", "fail", "unk", "maint", "boot", "inval", "planned_down")


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
    if not wishes:  # what the user excludes is not known, and would be dropped for good
        return None, ()
    if (least_most := nodes or _asked_before(told)) is not None:  # the script's range counts no more
        wishes["nodes"] = "-".join(map(str, least_most))
    users = tuple(h for h in handback.excluded(wishes) if h not in before and h not in hosts)
    wanted = (*(h for h, counts in before.items() if counts and h not in hosts), *hosts)

    def could_start(these: Sequence[str]) -> bool:
        return _could_start({**wishes, "exclude": ",".join((*users, *these))}, job, spec, paths, environ)

    kept = affordable(wanted, could_start)
    return (*users, *kept), wanted[: len(wanted) - len(kept)]


def excluded_before(history: list[Event], now: float) -> dict[str, bool]:
    """Return the hosts that this run has excluded since it was last submitted, the oldest first, and whether that still counts.

    After a day it does not: SLURM or an administrator has handled the fault, or it has passed. Nor does it once the host was
    needed to start the job. Such hosts are named so that they are taken back.
    """
    found: dict[str, bool] = {}
    for e in history:
        if isinstance(e, RunSubmitted):
            found = {}
        elif isinstance(e, (Excluded, Readmitted)):
            for host in filter(None, e.hosts):
                found.pop(host, None)  # its newest event decides its place
                found[host] = isinstance(e, Excluded) and now - e.t < _EXCLUDED_S
    return found


def affordable(hosts: Sequence[str], could_start: Callable[[Sequence[str]], bool]) -> tuple[str, ...]:
    """Drop as few of ``hosts`` (given the oldest first) as the job needs to start, the oldest first.

    ``could_start`` says whether the job could start without these hosts; it is asked log2(n) + 1 times.
    """
    given_up = bisect_left(range(len(hosts)), True, key=lambda n: could_start(hosts[n:]))
    return tuple(hosts[given_up:])


def schedulable_without(sinfo: str, hosts: Sequence[str], needed: int) -> bool:
    """Whether ``needed`` usable hosts are left in ``sinfo -N -o "%N %t"`` without ``hosts``."""
    usable = set()
    for line in sinfo.splitlines():
        name, _, state = line.strip().partition(" ")
        if name and not state.lower().startswith(_GONE):
            usable.add(name)
    return len(usable - set(hosts)) >= needed


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
