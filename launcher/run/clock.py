"""Tell the time of day: what the system's clock showed once, plus a counter that nobody can set.

So the times that a process writes (`t` of events, of the state, of the outcome) never jump, and two of them give a duration.
The clocks of two processes may differ by hours: never compare the times of two processes, unless one follows the other.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from typing import Any

_COUNTER = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def up_s() -> float:
    """Return the seconds since this host booted, sleep included; the same in all its processes."""
    return time.clock_gettime(_COUNTER)


_base = time.time() - up_s()


def now() -> float:
    """Return the time of day in seconds since the epoch."""
    return _base + up_s()


def set_to(t: float) -> None:
    """Tell the time of another process from now on: its clock shows ``t`` at this moment."""
    global _base
    _base = t - up_s()


@cache
def boot() -> str:
    """Return the id of this boot of this host's kernel; "" where there is none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as f:
            return f.read().strip()
    except OSError:
        return ""


def stamp() -> dict[str, Any]:
    """Return ``t``, and with ``boot`` and ``up_s`` the same moment for every process of this host."""
    return {"t": round(now(), 3), "boot": boot(), "up_s": round(up_s(), 3)}


def set_from(stamp: Mapping[str, Any]) -> None:
    """Tell the time of the process that made the `stamp`, if that was on this host."""
    ago, t = since(stamp), stamp.get("t")
    if ago is not None and isinstance(t, (int, float)):
        set_to(t + ago)


def since(stamp: Mapping[str, Any]) -> float | None:
    """Return the seconds since that `stamp` was made, whatever the clocks show; None for another host's or boot's."""
    made = stamp.get("up_s")
    if not isinstance(made, (int, float)) or not stamp.get("boot") or stamp["boot"] != boot():
        return None
    return max(0.0, up_s() - made)
