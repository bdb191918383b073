"""Ends the agent whose place another one takes: it may only stand still, and would go on some day."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence

import psutil

from launcher.run.paths import RunPaths
from launcher.run.processes import is_alive
from launcher.run.units import whole_number

_AGENTS = ("submitit.core._submit", "launcher.node.agent")
"""The modules that agents begin with."""
_SAME = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURMD_NODENAME")
_END_S = 5.0


def end_predecessor(paths: RunPaths, environ: Mapping[str, str], named: str = "") -> None:
    """Kill the other agents of this run on this host; their workers end with them. Never raises for a process that is gone.

    ``environ`` is this agent's own. ``named`` is PID,MARK of one of them: a container may hide a process's environment from its neighbours.
    """
    # What agents are called with: the run's folder, or submitit's, which the points of a sweep share. A job's id is one cluster's.
    folders = {os.path.realpath(paths.root), os.path.realpath(paths.lib.resolve().parent / paths.submitit.name)}
    found = [process for process in psutil.process_iter() if _is_agent(process, folders, environ)]
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


def _is_agent(process: psutil.Process, folders: Collection[str], environ: Mapping[str, str]) -> bool:
    try:
        module, folder = _called(process.cmdline())
        if process.pid == os.getpid() or module not in _AGENTS or os.path.realpath(folder) not in folders:
            return False
        theirs = process.environ()
    except psutil.Error:
        return False
    # The keeper and the batch script's srun name the module, too: they are in no step, of which 26.05 says -5 (the batch step).
    step = theirs.get("SLURM_STEP_ID", "")
    return (
        whole_number(step) is not None
        and step != environ.get("SLURM_STEP_ID")
        and all(theirs.get(name) == environ.get(name) for name in _SAME)
    )


def _called(words: Sequence[str]) -> tuple[str, str]:
    """Return the module that a command line of Python runs and its first argument; "" where there is none."""
    module, first, *_ = [*(words[words.index("-m") + 1 :] if "-m" in words else []), "", ""]
    return module, first
