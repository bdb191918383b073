"""The process table and what Linux offers to keep it clean. Reads ``/proc``; Linux only, as SLURM nodes are."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Container, Iterable

from launcher.frozen import frozen
from launcher.run.processes import stat_fields

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_libc = ctypes.CDLL(None, use_errno=True)


@frozen
class Proc:
    """One line of the process table."""

    pid: int
    ppid: int
    sid: int
    state: str
    """The state letter of proc(5): R, S, D, T (stopped), Z (zombie), ..."""
    cpu_s: float
    """CPU time used, user and system."""
    rss_bytes: int


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def become_subreaper() -> None:
    """Make orphans below this process its children instead of init's, so that they can be found and ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signum: int = signal.SIGKILL) -> None:
    """Have the kernel send ``signum`` to this process when the thread that made it ends; 0: no longer."""
    _prctl(_PR_SET_PDEATHSIG, signum)


def _read(pid: int) -> Proc | None:
    fields = stat_fields(pid)
    if not fields:
        return None
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS
    return Proc(pid, int(fields[1]), int(fields[3]), fields[0], cpu_s, rss_bytes=int(fields[21]) * _PAGE)


def table() -> dict[int, Proc]:
    """Read every process that can be seen now, by pid."""
    procs = (_read(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {proc.pid: proc for proc in procs if proc is not None}


def below(root: int, procs: dict[int, Proc], *, spare: Container[int] = ()) -> list[Proc]:
    """Return the descendants of ``root``, parents before children, without the trees whose top is in ``spare``."""
    children: dict[int, list[Proc]] = {}
    for proc in procs.values():
        children.setdefault(proc.ppid, []).append(proc)
    found: list[Proc] = []
    ahead = [root]
    while ahead:
        for child in children.get(ahead.pop(), ()):
            if child.pid not in spare:
                found.append(child)
                ahead.append(child.pid)
    return found


def marked(pid: int, mark: bytes) -> bool:
    """Whether ``mark`` (``NAME=value``) is in the environment that ``pid`` was started with."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            return mark in f.read().split(b"\0")
    except OSError:
        return False


def kill_all(procs: Iterable[Proc]) -> None:
    """KILL every one of ``procs`` that is no zombie; one that has ended meanwhile is no error."""
    for proc in procs:
        if proc.state != "Z":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(proc.pid, signal.SIGKILL)
