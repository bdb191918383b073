"""The time of day as one process tells it: the system's clock is read once; from then on one counts that nobody can set.

So what a process tells (`t` of events, of the picture, of the outcome) never jumps, and two of its times tell a duration. The
clocks of two processes may differ by hours: nothing is decided by comparing what two of them told, unless one follows the other.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from typing import Any

__all__ = ["boot", "follow", "now", "resume", "since", "stamp", "up_s"]

_COUNTER = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def up_s() -> float:
    """Seconds since this host has booted, those in which it slept included; alike in all its processes."""
    return time.clock_gettime(_COUNTER)


_base = time.time() - up_s()


def now() -> float:
    """The time of day in seconds since the epoch."""
    return _base + up_s()


def follow(t: float) -> None:
    """Tell the time as another process does, for which it is ``t`` at this moment."""
    global _base
    _base = t - up_s()


@cache
def boot() -> str:
    """Names this life of this host's kernel; "" where it has no name."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as f:
            return f.read().strip()
    except OSError:
        return ""


def stamp() -> dict[str, Any]:
    """``t``, and with ``boot`` and ``up_s`` the same moment as every process of this host knows it."""
    return {"t": round(now(), 3), "boot": boot(), "up_s": round(up_s(), 3)}


def resume(stamp: Mapping[str, Any]) -> None:
    """Tell the time as the process did that made the `stamp`, where it did so on this host."""
    ago, t = since(stamp), stamp.get("t")
    if ago is not None and isinstance(t, (int, float)):
        follow(t + ago)


def since(stamp: Mapping[str, Any]) -> float | None:
    """Seconds since that `stamp` was made, whatever the clocks show; None where it was not made here, since the last boot."""
    made = stamp.get("up_s")
    if not isinstance(made, (int, float)) or not stamp.get("boot") or stamp["boot"] != boot():
        return None
    return max(0.0, up_s() - made)
