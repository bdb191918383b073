"""Ends the agent whose place another one takes: it may only stand still, and would go on some day."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence

import psutil

from launcher.run.processes import is_alive
from launcher.run.units import whole_number

_AGENTS = ("submitit.core._submit", "launcher.node.agent")
"""The modules that agents begin with."""
_SAME = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURMD_NODENAME")
_END_S = 5.0


def end_predecessor(environ: Mapping[str, str], named: str = "") -> None:
    """Kill the other agents of this job on this host; their workers end with them. Never raises for a process that is gone.

    ``named`` is PID,MARK of one of them: a container may hide a process's environment from its neighbours.
    """
    found = [process for process in psutil.process_iter() if _is_agent(process, environ)]
    pid, _, mark = named.partition(",")
    if mark and (number := whole_number(pid)) is not None and is_alive(number, mark):
        with contextlib.suppress(psutil.Error):
            found.append(psutil.Process(number))
    for process in found:
        try:
            process.kill()
        except psutil.Error:
            continue
    psutil.wait_procs(found, timeout=_END_S)


def _is_agent(process: psutil.Process, environ: Mapping[str, str]) -> bool:
    try:
        if process.pid == os.getpid() or _module(process.cmdline()) not in _AGENTS:
            return False
        theirs = process.environ()
    except psutil.Error:
        return False
    # The keeper and its sruns name the module, too: they are in no step.
    step = theirs.get("SLURM_STEP_ID")
    return step not in (None, environ.get("SLURM_STEP_ID")) and all(
        theirs.get(name) == environ.get(name) for name in _SAME
    )


def _module(words: Sequence[str]) -> str:
    """Return the module that a command line of Python runs, "" where there is none."""
    return words[words.index("-m") + 1] if "-m" in words[:-1] else ""
