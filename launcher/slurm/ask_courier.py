"""Run SLURM's commands from a container that has none: write the question to a file, which `launcher.slurm.courier` answers."""

from __future__ import annotations

import contextlib
import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.run.files import read_object, write_atomic

VARIABLE = "LAUNCHER_COURIER"
"""Names the folder, in the environment of agents. Each host has one of its own in it: another host would see a file late."""
COMMANDS = frozenset({"sacct", "sbatch", "scancel", "scontrol", "sdiag", "sinfo", "squeue"})
POLL_S = 0.1
"""Seconds between two looks for a file."""


def own_folder(courier: str) -> Path:
    """Return where this host's questions are, in the folder ``courier``."""
    return Path(courier, os.environ.get("SLURMD_NODENAME", ""))


def call_courier() -> None:
    """Have a courier started on this host, where there are couriers: the one of the batch script ends with its host. Never raises."""
    if folder := os.environ.get(VARIABLE):
        with contextlib.suppress(OSError):
            own_folder(folder).mkdir(mode=0o700, exist_ok=True)


def ask_courier(words: Sequence[str], *, timeout_s: float, environ: Mapping[str, str] | None) -> dict[str, Any] | None:
    """Have ``words`` run outside and return an answer's fields; None without a courier, or when it does not answer in time.

    Only the words leave the container, never the environment: whether the allocation's own variables are to be hidden is
    seen from their absence in ``environ``.
    """
    folder = os.environ.get(VARIABLE)
    if not folder or words[0] not in COMMANDS:
        return None
    name = uuid.uuid4().hex
    ask, answer = (own_folder(folder) / f"{kind}.{name}" for kind in ("ask", "answer"))
    hidden = environ is not None and "SLURM_JOB_ID" not in environ
    question = {"words": list(words), "timeout_s": timeout_s, "hidden": hidden, "pid": os.getpid()}
    try:
        write_atomic(ask, json.dumps(question), durable=False)
    except OSError:
        return None
    end = time.monotonic() + timeout_s + 5 * POLL_S
    while time.monotonic() < end:
        if (answered := read_object(answer)) is not None:
            answer.unlink(missing_ok=True)
            return answered
        time.sleep(POLL_S)
    ask.unlink(missing_ok=True)
    return None
