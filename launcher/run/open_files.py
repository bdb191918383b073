"""How many files a process may have open: a leader more than the programs that it starts.

Standard library only: what runs SLURM's commands needs it.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Mapping, Sequence

_MOST = 65536
"""More than any allocation has nodes; a hard limit may be a billion, and some programs close every number up to the limit."""
BEFORE = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
"""The limit with which this process was started."""


def raise_limit() -> None:
    """Allow this process, which leads, as many open files as it may have: each agent's connection is one.

    What it starts must not inherit that: a program that expects 1,024 may use select(2), and sbatch hands its limits to the new
    job's workers. The fork server goes back to `BEFORE` itself; other programs are started by `as_before`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def as_before(words: Sequence[str], environ: Mapping[str, str] | None = None) -> list[str]:
    """Return the command that starts ``words`` with the limit `BEFORE`. Raises FileNotFoundError where there is no such program.

    util-linux's prlimit, because a shell may drop variables: dash those that hold bash's functions (``module``). Without it
    (a container of another system) the program gets the raised limit.
    """
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= BEFORE or (prlimit := shutil.which("prlimit")) is None:
        return list(words)
    if shutil.which(words[0], path=None if environ is None else environ.get("PATH", os.defpath)) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), words[0])
    return [prlimit, f"--nofile={BEFORE}:", *words]
