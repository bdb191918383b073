"""Ends one run, at once or after it has saved: what ``launcher cancel`` and the live view do alike."""

from __future__ import annotations

import time

from launcher.errors import SiteError, StateError
from launcher.frozen import frozen
from launcher.run import events
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome
from launcher.submission.requests import bury, request_stop
from launcher.submission.where import Where, locate

__all__ = ["NOTICE_S", "Stopped", "stop"]

NOTICE_S = 15.0
"""How long a cancel is watched taking effect before the rest is left to SLURM."""


@frozen
class Stopped:
    """What came of it."""

    sentence: str
    """``RUN is cancelled``, for a user."""
    over: bool
    """Nothing more will happen to the run."""


def stop(paths: RunPaths, *, save: bool) -> Stopped:
    """End the run; with ``save`` it saves first, unless it waits in a queue: then there is nothing to save.

    Takes up to `NOTICE_S` for a run that is not asked to save. Raises SiteError or StateError when it cannot be told.
    """
    outcome = read_outcome(paths.outcome)
    if outcome is not None:
        return Stopped(f"{paths.id} has ended already: {outcome.get('state')}", over=True)
    where = locate(paths)
    if not where.alive(fresh=True):
        return Stopped(f"{paths.id} is not running any more", over=True)
    waits = where.backend == "slurm" and where.slurm_state() in ("PENDING", "REQUEUED")
    if save and not waits:
        _tell(paths, where, save=True)
        return Stopped(f"{paths.id} saves and ends", over=False)
    job = where.job_id
    _tell(paths, where, save=False)
    if _gone(paths, where, job, waits):
        return Stopped(f"{paths.id} is cancelled", over=True)
    return Stopped(f"{paths.id} is being cancelled", over=False)


def _tell(paths: RunPaths, where: Where, *, save: bool) -> None:
    """Leave the request, then the signal or SLURM's cancel; no request is left when that fails."""
    asks = save or where.backend == "slurm"
    if asks:
        request_stop(paths, save=save)  # also of a cancel: a run on its way to another job is told by it alone
    try:
        where.ask_to_save() if save else where.cancel()
    except (SiteError, StateError):
        if asks:
            paths.request.unlink(missing_ok=True)  # a later attempt must not believe that it was cancelled
        raise


def _gone(paths: RunPaths, where: Where, job: str, waits: bool) -> bool:
    """Wait until nothing works on it any more; a run that nobody led gets an outcome, a continuation is cancelled, too."""
    end = time.monotonic() + NOTICE_S
    while time.monotonic() < end:
        if read_outcome(paths.outcome) is not None:
            return True
        if where.backend == "slurm" and where.job_id != job:
            job = where.job_id
            where.cancel()
        if not where.alive(fresh=True):
            bury(paths, _reason(paths) if waits else "it was cancelled")
            return True
        time.sleep(0.5)
    return False


def _reason(paths: RunPaths) -> str:
    begun = any(e["type"] == "attempt_started" for e in events.read(paths.events))
    return f"it was cancelled {'while it waited to go on' if begun else 'before it had started'}"
