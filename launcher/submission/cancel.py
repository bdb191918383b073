"""Cancel runs, at once or after they have saved: for ``launcher cancel`` and the live view."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from launcher.errors import LauncherError, RunDirError, SiteError, StateError
from launcher.frozen import frozen
from launcher.run import event_lines
from launcher.run.events import AttemptStarted, RunSubmitted, SignalReceived
from launcher.run.own_folder import require_own
from launcher.run.paths import RunPaths
from launcher.run.state import forget_request, read_outcome, read_state
from launcher.slurm.later_jobs import cancel_named
from launcher.submission.folder.requests import request_stop, write_cancelled
from launcher.submission.liveness import RunLocation, is_hold, locate, open_jobs, scancel, withdraw_early

_WAITS = ("PENDING", "REQUEUED")
_WAIT_S = 15.0
"""A command waits so long for a cancelled run to end; SLURM does the rest."""


@frozen
class Cancelled:
    """The result of a cancel."""

    sentence: str
    """``RUN is cancelled``, for a user."""
    over: bool
    """The run has ended."""


def cancel_run(paths: RunPaths, *, save: bool) -> Cancelled:
    """Cancel the run. With ``save`` it saves first, unless it waits in a queue: then there is nothing to save.

    Takes up to 15 s for a run that is not asked to save. Raises SiteError or StateError when it cannot be reached.
    """
    require_own(paths.root, executes=False)
    withdraw_early(paths)
    outcome = read_outcome(paths.outcome)
    if outcome is not None:
        return Cancelled(f"{paths.id} has ended already: {outcome.get('state')}", over=True)
    where = locate(paths)
    if not where.alive(fresh=True):
        _forget_rest(paths)
        return Cancelled(f"{paths.id} is not running any more", over=True)
    if where.in_foreign_job and is_hold(paths):
        return _stop_inside(paths, save=save)
    if where.hold is not None:
        return _stop_rerun(where.hold, paths, save=save)
    waits = where.backend == "slurm" and where.slurm_state() in _WAITS
    if save and not waits:
        _announce([paths], where.ask_to_save, save=True)
        return Cancelled(f"{paths.id} {_told_to_save(paths)}", over=False)
    job = where.job_id
    if where.backend != "slurm":
        forget_request(paths)  # an earlier one to save: TERM without a request ends the run at once
    _announce([paths] if where.backend == "slurm" else [], where.cancel)
    if _gone(paths, where, job, waits):
        return Cancelled(f"{paths.id} is cancelled", over=True)
    return Cancelled(f"{paths.id} is being cancelled", over=False)


def _told_to_save(paths: RunPaths) -> str:
    """Return what a run does that is told to save and stop: scripts that count no steps with the launcher save by themselves, or not."""
    state = read_state(paths.state)
    told = state.get("ranks")
    ranks = [rank for rank in told if isinstance(rank, dict)] if isinstance(told, list) else []
    if ranks and not state.get("step") and all(rank.get("phase") == "script" for rank in ranks):
        return "gets SIGTERM and will then stop; what its script does not save itself is lost"
    return "is saving and will then stop"


def _forget_rest(paths: RunPaths) -> None:
    """Remove the variables passed by name of a run that ended where nothing of it could: its job was cancelled in the queue, its host lost.

    And the job of a resubmission that was killed before it could note that.
    A resubmission of this moment has written its own: both do it alone, and SLURM is asked again.
    """
    from launcher.submission.folder.replace_files import kept_files, lock_run

    with contextlib.suppress(LauncherError, OSError):
        if paths.passed.exists() or kept_files(paths):
            with lock_run(paths):
                if not locate(paths).alive(fresh=True):
                    if kept_files(paths):
                        cancel_named(paths.id)
                    paths.passed.unlink(missing_ok=True)


def _stop_rerun(hold: RunPaths, paths: RunPaths, *, save: bool) -> Cancelled:
    """Have a hold stop its rerun; the hold stays. Raises StateError where it cannot be reached."""
    from launcher.node.wire.hold_messages import RerunFinished, RerunRefused, StopRerun
    from launcher.submission.hold_link import hold_link

    end = time.monotonic() + (1.0 if save else _WAIT_S)
    with hold_link(hold) as link:
        link.send(StopRerun(run=paths.id, save=save))
        while (left_s := end - time.monotonic()) > 0:
            said = link.receive(left_s)
            if isinstance(said, RerunFinished):
                return Cancelled(f"{paths.id} {said.state}; {hold.id} stays", over=True)
            if isinstance(said, RerunRefused):
                write_cancelled([paths], "`launcher cancel` ended it before it started")  # its command was killed
                return Cancelled(said.why, over=True)
    return Cancelled(f"{paths.id} is {'saving and will then stop' if save else 'being cancelled'}", over=False)


def _stop_inside(paths: RunPaths, *, save: bool) -> Cancelled:
    """End a hold in an allocation of the user's own, and not that."""
    from launcher.node.wire.hold_messages import StopRerun
    from launcher.submission.hold_link import hold_link

    with hold_link(paths) as link:
        link.send(StopRerun(run=paths.id, save=save))
    end = time.monotonic() + _WAIT_S
    while read_outcome(paths.outcome) is None and time.monotonic() < end:
        time.sleep(0.1)
    over = read_outcome(paths.outcome) is not None
    return Cancelled(f"{paths.id} is {'cancelled' if over else 'being cancelled'}; the allocation stays", over=over)


def cancel_points(runs: Sequence[RunPaths], failed: dict[str, LauncherError]) -> int:
    """Cancel a sweep's points: one scancel for all, outcomes for those without a leader. Return how many have not ended.

    ``failed`` gets why a point, by its id, cannot be cancelled. Raises SiteError when SLURM does not answer or refuses.
    """
    jobs, here = _places_of(runs, failed)
    left = open_jobs(jobs)
    if left:
        _announce([where.paths for where in left], lambda: scancel(*left.values()))
    end = time.monotonic() + _WAIT_S
    while left and time.monotonic() < end:
        left = open_jobs(jobs)
        # A leader that goes on in another job writes so before its own job ends.
        moved = {where: new for where, job in jobs.items() if where not in left and (new := where.job_id) != job}
        if moved:
            scancel(*moved.values())
            jobs |= moved
            left |= moved
        time.sleep(0.5 if left else 0.0)
    write_cancelled([where.paths for where in jobs if where not in left], "`launcher cancel` ended it")
    ending = len(left)
    for paths in here:
        try:
            ending += not cancel_run(paths, save=False).over
        except StateError as error:
            failed[paths.id] = error
    return ending


def waiting_points(runs: Sequence[RunPaths]) -> list[RunPaths]:
    """Return those of a sweep's points that wait in SLURM's queue, and so have nothing to save. Raises SiteError."""
    return [where.paths for where in open_jobs(_places_of(runs, {})[0], _WAITS)]


def _places_of(
    runs: Sequence[RunPaths], failed: dict[str, LauncherError]
) -> tuple[dict[RunLocation, str], list[RunPaths]]:
    """Return the points without an outcome: those in SLURM with their jobs, and those resubmitted to one machine alone."""
    jobs, here = dict[RunLocation, str](), list[RunPaths]()
    for paths in runs:
        require_own(paths.root, executes=False)
        if read_outcome(paths.outcome) is None:
            try:
                where = locate(paths)
            except StateError as error:
                failed[paths.id] = error
                continue
            if where.backend == "slurm":
                jobs[where] = where.job_id
            else:
                here.append(paths)
    return jobs, here


def _announce(runs: Sequence[RunPaths], order: Callable[[], None], *, save: bool = False) -> None:
    """Write a request into each of ``runs``, then give the ``order`` (a signal, scancel); remove the requests when that fails.

    Also of a cancel: a run that is moving to another job at this moment learns of it by the request alone. But a full disk
    does not keep a run from being cancelled.
    """
    for paths in runs:
        with contextlib.suppress(*(() if save else (RunDirError,))):
            request_stop(paths, save=save)
    try:
        order()
    except (SiteError, StateError):
        for paths in runs:
            paths.request.unlink(missing_ok=True)  # a later attempt must not believe that it was cancelled
        raise


def _gone(paths: RunPaths, where: RunLocation, job: str, waits: bool) -> bool:
    """Wait until the run has ended; one without a leader gets an outcome, a continuation is cancelled, too."""
    end = time.monotonic() + _WAIT_S
    while time.monotonic() < end:
        if read_outcome(paths.outcome) is not None:
            return True
        if where.backend == "slurm" and where.job_id != job:
            job = where.job_id
            where.cancel()
        if not where.alive(fresh=True):
            begun = any(isinstance(e, AttemptStarted) for e in event_lines.read(paths.events))
            when = "while it waited to go on" if begun else "before it started"
            write_cancelled([paths], f"`launcher cancel` ended it {when}" if waits else "`launcher cancel` ended it")
            return True
        time.sleep(0.5)
        if where.backend != "slurm" and not _heard(paths):
            with contextlib.suppress(StateError):  # it has just ended
                where.cancel()
    return False


def _heard(paths: RunPaths) -> bool:
    """Whether the leader of a local run has noted a signal since the run was last submitted.

    submitit's controller hands TERM on to the tasks that it has started: one that comes before that is lost.
    """
    for event in reversed(event_lines.read(paths.events)):
        if isinstance(event, RunSubmitted):
            break
        if isinstance(event, SignalReceived):
            return True
    return False
