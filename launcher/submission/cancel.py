"""Ends runs, at once or after they have saved: what ``launcher cancel`` and the live view do alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from launcher.errors import SiteError, StateError
from launcher.frozen import frozen
from launcher.run import events
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome
from launcher.submission.folder.requests import request_stop, write_cancelled
from launcher.submission.liveness import Where, cancel_jobs, locate, states_of

__all__ = ["Stopped", "stop", "stop_all"]

_NOTICE_S = 15.0
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

    Takes up to 15 s for a run that is not asked to save. Raises SiteError or StateError when it cannot be told.
    """
    outcome = read_outcome(paths.outcome)
    if outcome is not None:
        return Stopped(f"{paths.id} has ended already: {outcome.get('state')}", over=True)
    where = locate(paths)
    if not where.alive(fresh=True):
        return Stopped(f"{paths.id} is not running any more", over=True)
    waits = where.backend == "slurm" and where.slurm_state() in ("PENDING", "REQUEUED")
    if save and not waits:
        _announce([paths], where.ask_to_save, save=True)
        return Stopped(f"{paths.id} saves and ends", over=False)
    job = where.job_id
    _announce([paths] if where.backend == "slurm" else [], where.cancel)
    if _gone(paths, where, job, waits):
        return Stopped(f"{paths.id} is cancelled", over=True)
    return Stopped(f"{paths.id} is being cancelled", over=False)


def stop_all(runs: Sequence[RunPaths]) -> int:
    """End a sweep's points: one scancel for all, outcomes for those that nobody led. Returns how many still end after 15 s.

    Raises SiteError when SLURM does not answer or refuses.
    """
    places = {paths: locate(paths) for paths in runs if read_outcome(paths.outcome) is None}
    jobs = {paths: where.job_id for paths, where in places.items()}
    left = states_of({job: places[paths] for paths, job in jobs.items()})
    _announce([paths for paths, job in jobs.items() if job in left], lambda: cancel_jobs(list(left)))
    end = time.monotonic() + _NOTICE_S
    while left and time.monotonic() < end:
        left = states_of({job: places[paths] for paths, job in jobs.items()})
        # A leader that goes on in another job writes so before its own job ends.
        moved = {paths: new for paths, job in jobs.items() if job not in left and (new := places[paths].job_id) != job}
        cancel_jobs(list(moved.values()))
        jobs |= moved
        left |= dict.fromkeys(moved.values(), "PENDING")
        time.sleep(0.5 if left else 0.0)
    write_cancelled([paths for paths, job in jobs.items() if job not in left], "it was cancelled")
    return len(left)


def _announce(runs: Sequence[RunPaths], order: Callable[[], None], *, save: bool = False) -> None:
    """Leave a request in each of ``runs``, then give the ``order`` (a signal, SLURM's cancel); no request is left when that fails.

    Also of a cancel: a run that is on its way to another job at this moment is told by the request alone.
    """
    for paths in runs:
        request_stop(paths, save=save)
    try:
        order()
    except (SiteError, StateError):
        for paths in runs:
            paths.request.unlink(missing_ok=True)  # a later attempt must not believe that it was cancelled
        raise


def _gone(paths: RunPaths, where: Where, job: str, waits: bool) -> bool:
    """Wait until nothing works on it any more; a run that nobody led gets an outcome, a continuation is cancelled, too."""
    end = time.monotonic() + _NOTICE_S
    while time.monotonic() < end:
        if read_outcome(paths.outcome) is not None:
            return True
        if where.backend == "slurm" and where.job_id != job:
            job = where.job_id
            where.cancel()
        if not where.alive(fresh=True):
            write_cancelled([paths], _reason(paths) if waits else "it was cancelled")
            return True
        time.sleep(0.5)
    return False


def _reason(paths: RunPaths) -> str:
    begun = any(e["type"] == "attempt_started" for e in events.read(paths.events))
    return f"it was cancelled {'while it waited to go on' if begun else 'before it had started'}"
