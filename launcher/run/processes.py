"""Tell processes apart. Process ids are used again, and the time of day moves when somebody sets the clock."""

from __future__ import annotations

import os
import socket
import time

from launcher.run import clock

_SLACK_S = 5.0
_MOST_PIDS = 2**31
"""0 and negative numbers mean groups of processes, -1 all."""


def mark_of(pid: int) -> str | None:
    """Return what distinguishes process ``pid`` from every other of that id: boot and tick of its start. None: no such process."""
    fields = stat_fields(pid)
    return f"{clock.boot()}/{fields[19]}" if fields else None


def is_alive(pid: int, mark: object) -> bool:
    """Return whether that process runs, and is no zombie. ``mark``: its `mark_of`, or in older versions its start's time."""
    fields = stat_fields(pid)
    if not fields:
        return _answers(pid)  # other users' processes may be hidden, and not every system has /proc
    if fields[0] in ("Z", "X"):
        return False
    if isinstance(mark, (int, float)):
        return abs(time.time() - age_s(pid) - mark) < _SLACK_S
    return mark in (None, mark_of(pid))


def runs_here(host: object, pid: object, mark: object) -> bool | None:
    """Return whether the process that a run's files name runs on this host; None for a process of another host."""
    if host not in (None, "", socket.gethostname()):
        return None
    return type(pid) is int and 0 < pid < _MOST_PIDS and is_alive(pid, mark)


def age_s(pid: int) -> float:
    """Return the seconds since the process began; 0 where it has ended."""
    fields = stat_fields(pid)
    return clock.up_s() - int(fields[19]) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def stat_fields(pid: int) -> list[str]:
    """Return the fields of its line in ``/proc`` from the state on; none where it has ended. Its name may hold anything, ") R 1" too."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            return f.read().rpartition(b")")[2].decode().split()
    except OSError:
        return []


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
