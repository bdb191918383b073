"""Write into a run's folder what a command must: a request to the leader, or the outcome of a run without a leader."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from launcher.errors import RunCancelledError, RunDirError
from launcher.run import event_lines, events
from launcher.run.paths import RunPaths
from launcher.run.state import forget_passed, read_outcome, write_outcome, write_request

_LAST_WRITE_S = 0.2


def request_stop(paths: RunPaths, *, save: bool) -> None:
    """Write the user's request to stop the run; a signal then announces it. Raises RunDirError."""
    try:
        write_request(paths, save=save)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise RunDirError(f"the request to stop cannot be written into {paths.root}: {why}") from None


def write_cancelled(runs: Sequence[RunPaths], reason: str) -> None:
    """Write the outcome "cancelled" of ``runs`` where no leader has written one: nothing works on them any more.

    A disk that is full, where no leader has kept room for it, leaves a run without one. Its job is cancelled all the same.
    """
    time.sleep(_LAST_WRITE_S)  # a leader's last write may be on its way
    for paths in runs:
        if (
            read_outcome(paths.outcome) is not None or not paths.root.exists()
        ):  # a rerun that was refused took its folder away
            continue
        saved = events.last_of(event_lines.read(paths.events), events.Saved)
        end: dict[str, Any] = {"state": "cancelled", "reason": f"{reason[0].upper()}{reason[1:]}.",
               "exit_code": RunCancelledError.exit_code, "step": saved and saved.step}  # fmt: skip
        ended = events.event("ended", attempt=None, **end)
        with contextlib.suppress(OSError):
            event_lines.append(paths.events, ended)
        with contextlib.suppress(OSError):
            write_outcome(paths.outcome, {**end, "t": ended.t, "attempt": None, "metrics": {}, "cause": None})
        forget_passed(paths)
