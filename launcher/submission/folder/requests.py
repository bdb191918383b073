"""What a command writes into a run's folder in the leader's place: a request to it, and the outcome of a run without one."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from launcher.errors import RunCancelledError
from launcher.run import events
from launcher.run.files import write_atomic
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome, write_outcome
from launcher.submission.folder import rundir

__all__ = ["bury", "request_stop"]

_LAST_WRITE_S = 0.2


def request_stop(paths: RunPaths, *, save: bool) -> None:
    """Write down that the user wants the run stopped; a signal then announces it. Raises RunDirError."""
    try:
        write_atomic(paths.request, json.dumps({"action": "stop", "save": save, "t": time.time()}) + "\n", mode=0o600)
    except OSError as error:
        raise rundir.refuse(paths.root, error) from None


def bury(runs: Sequence[RunPaths], reason: str) -> None:
    """Write the outcome "cancelled" of runs that no leader will write: nothing works on them any more."""
    time.sleep(_LAST_WRITE_S)  # a leader's last write may be on its way
    for paths in runs:
        if read_outcome(paths.outcome) is None:
            _write_cancelled(paths, reason[0].upper() + reason[1:] + ".")


def _write_cancelled(paths: RunPaths, sentence: str) -> None:
    code = RunCancelledError.exit_code
    step = next((e.get("step") for e in reversed(events.read(paths.events)) if e.get("type") == "saved"), None)
    ended = events.event("ended", attempt=None, state="cancelled", reason=sentence, exit_code=code, step=step)
    events.append(paths.events, ended)
    write_outcome(
        paths.outcome,
        {"state": "cancelled", "reason": sentence, "exit_code": code, "step": step, "t": ended["t"], "attempt": None,
         "metrics": {}, "cause": None},
    )  # fmt: skip
