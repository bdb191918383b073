"""This host's processes of a job of SLURM. Standard library only: with a container whatever Python the host has runs the job's end."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping

from launcher.run.processes import age_s, stat_fields


def life_s(environ: Mapping[str, str]) -> float:
    """Return the age of this process's oldest ancestor in this life of the job: the batch script, or the step's task."""
    age, pid = 0.0, os.getpid()
    while _agree(_environ_of(pid), environ, "SLURM_JOB_ID", "SLURM_RESTART_COUNT") and (fields := stat_fields(pid)):
        age, pid = age_s(pid), int(fields[1])
    return age


def end_srun(environ: Mapping[str, str]) -> bool:
    """Kill the job's sruns on this host; return whether there were any. Never raises."""
    killed = False
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        if _name_of(pid) == "srun" and _agree(_environ_of(pid), environ, "SLURM_JOB_ID", "SLURM_CONF"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed = True
    return killed


def _agree(theirs: Mapping[str, str], mine: Mapping[str, str], *names: str) -> bool:
    return bool(theirs) and all(theirs.get(name) == mine.get(name) for name in names)


def _name_of(pid: int) -> str:
    return _read(pid, "comm").rstrip("\n")


def _environ_of(pid: int) -> dict[str, str]:
    """Return what the process was started with; empty where it has ended or is somebody else's."""
    return dict(line.split("=", 1) for line in _read(pid, "environ").split("\0") if "=" in line)


def _read(pid: int, what: str) -> str:
    try:
        with open(f"/proc/{pid}/{what}", "rb") as f:
            return os.fsdecode(f.read())
    except OSError:
        return ""
