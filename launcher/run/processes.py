"""Which process a number means. Numbers are used again, and times of day move when somebody sets the clock."""

from __future__ import annotations

import os
import socket
import time

from launcher.run import clock

__all__ = ["age_s", "is_alive", "mark_of", "runs_here"]

_SLACK_S = 5.0


def mark_of(pid: int) -> str | None:
    """Tells process ``pid`` from every other of that number, before and after: boot and tick of its start. None: there is none."""
    fields = _fields(pid)
    return f"{clock.boot()}/{fields[19]}" if fields else None


def is_alive(pid: int, mark: object) -> bool:
    """Whether that process runs, and is no zombie. ``mark``: its `mark_of`, or the time of its start, as older versions noted it."""
    fields = _fields(pid)
    if not fields:
        return _answers(pid)  # others' may be hidden, and not every system has /proc
    if isinstance(mark, (int, float)):
        return fields[0] not in ("Z", "X") and abs(time.time() - age_s(pid) - mark) < _SLACK_S
    return fields[0] not in ("Z", "X") and mark in (None, mark_of(pid))


def runs_here(host: object, pid: object, mark: object) -> bool | None:
    """Whether the process that a run's files name works on this host; None where it is another host's, and cannot be seen."""
    if host not in (None, "", socket.gethostname()):
        return None
    return isinstance(pid, int) and is_alive(pid, mark)


def age_s(pid: int) -> float:
    """Seconds since the process began; 0 where it has ended."""
    fields = _fields(pid)
    return clock.up_s() - int(fields[19]) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _fields(pid: int) -> list[str]:
    """Its line in ``/proc`` from the state on."""
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
