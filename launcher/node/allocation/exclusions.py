"""Which hosts the next attempt must not use: those that failed in the last day, as far as SLURM can start without them. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from launcher.run.events import Event, Excluded, Readmitted, RunSubmitted

_EXCLUDED_S = 86400.0
_GONE = ("down", "drain", "drng", "fail", "unk", "maint", "boot", "inval", "planned_down")


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
