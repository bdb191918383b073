"""Find out whether anything works on a run, and send it signals: through SLURM, or on this machine."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.errors import SiteError, StateError
from launcher.run import event_lines
from launcher.run.events import JobNamed, RunSubmitted
from launcher.run.paths import RunPaths
from launcher.run.processes import runs_here
from launcher.run.state import is_this_job, read_submission
from launcher.slurm.commands import Answer, ask
from launcher.slurm.jobs import ENDED
from launcher.submission.backends import local as local_backend

_ASK_EVERY_S = 20.0
_ANSWER_S = 60.0
_LEAVING_S = 60.0


class RunLocation:
    """Where a run is: the job or processes of its latest submission."""

    def __init__(self, paths: RunPaths, submission: dict[str, Any]) -> None:
        self._paths = paths
        self._submission = submission
        self.backend = str(submission.get("backend"))
        self._asked = float("-inf")
        self._state = "PENDING"

    @property
    def job_id(self) -> str:
        """SLURM's job id now: a continuation has another one than the submission."""
        for event in reversed(event_lines.read(self._paths.events)):
            if isinstance(event, RunSubmitted):
                break
            if isinstance(event, JobNamed) and event.job_id:
                return event.job_id
        return str(self._submission.get("job_id"))

    def slurm_state(self, *, fresh: bool = True) -> str:
        """Return the job's state in SLURM; "" when SLURM knows no such job. ``fresh=False`` asks at most every 20 s.

        Raises SiteError when SLURM does not answer.
        """
        if not fresh and time.monotonic() - self._asked < _ASK_EVERY_S:
            return self._state
        self._asked = time.monotonic()
        lines = _squeue("--states=all", f"--jobs={self.job_id}", "--format=%T %j %o")
        state, *job = lines[0].split(maxsplit=2) if lines else [""]
        self._state = state if self.has(*job) else ""
        return self._state

    def has(self, name: str = "", command: str = "") -> bool:
        """Return whether a job of that name and batch script is this run's; "" is unknown."""
        return is_this_job(self._submission, self._paths.root, name=name, command=command)

    def alive(self, *, fresh: bool = False) -> bool:
        """Return whether something works on the run or will; also when SLURM does not answer."""
        if self.backend == "slurm":
            try:
                return self.slurm_state(fresh=fresh) not in {"", *ENDED}
            except SiteError:
                return True
        return self._runs_here() is not False

    def _runs_here(self) -> bool | None:
        said = self._submission
        return runs_here(said.get("host"), said.get("pid"), said.get("pid_started"))

    def ask_to_save(self) -> None:
        """Signal the leader that there is a request. Raises SiteError or StateError."""
        if self.backend == "slurm":
            _checked("scancel", "--signal=USR2", self.job_id)
        else:
            self._signal_local()

    def cancel(self) -> None:
        """Cancel: SLURM's scancel, or TERM to the local controller. Raises SiteError or StateError."""
        if self.backend == "slurm":
            _checked("scancel", self.job_id)
        else:
            self._signal_local()

    def _signal_local(self) -> None:
        alive = self._runs_here()
        if alive is None:
            raise StateError(f"{self._paths.id} runs on {self._submission.get('host')}: run this command there")
        if not alive or not local_backend.terminate(self._submission["pid"], self._submission.get("pid_started")):
            raise StateError(f"{self._paths.id} is not running any more")


def locate(paths: RunPaths) -> RunLocation:
    """Return where the run is. Raises StateError when it was never submitted."""
    submission = read_submission(paths.submission)
    if not submission:
        raise StateError(f"{paths.id} has no submission.json: it was never submitted")
    return RunLocation(paths, submission)


def states_of(jobs: Mapping[str, RunLocation]) -> dict[str, str]:
    """Return the state in SLURM of each job that has not ended, by id, with one query. Raises SiteError."""
    parents = sorted({job.partition("_")[0] for job in jobs})
    if not parents:
        return {}
    lines = _squeue("--array", f"--jobs={','.join(parents)}", "--format=%i %T %j %o")
    rows = (line.split(maxsplit=3) for line in lines)
    found = {row[0]: row[1:] for row in rows if len(row) > 1}
    known = {job: found[job][0] for job, where in jobs.items() if job in found and where.has(*found[job][1:])}
    return {job: state for job, state in known.items() if state not in ENDED}


def ended(runs: Mapping[str, RunLocation]) -> set[str]:
    """Return the ids of the runs on which nothing works any more, with one query to SLURM. Raises SiteError."""
    slurm = {run: where.job_id for run, where in runs.items() if where.backend == "slurm"}
    left = states_of({job: runs[run] for run, job in slurm.items()})
    return {run for run, w in runs.items() if (slurm[run] not in left if run in slurm else not w.alive(fresh=True))}


def await_end(places: Sequence[RunLocation]) -> bool:
    """Wait until nothing works any more on runs that have an outcome; return False when something still does after a minute.

    The outcome is written some seconds before the last process ends. A batch script that finds no outcome would report that
    the leader had died.
    """
    end = time.monotonic() + _LEAVING_S
    runs = {str(number): where for number, where in enumerate(places)}
    while len(ended(runs)) < len(runs):
        if time.monotonic() > end:
            return False
        time.sleep(0.5)
    return True


class Census:
    """Watches many runs: SLURM is asked about all at once, at most every 20 s."""

    def __init__(self, runs: Sequence[RunPaths]) -> None:
        self._places = {paths.id: locate(paths) for paths in runs}
        self._asked = float("-inf")
        self._since: dict[str, int] = {}

    def gone(self, runs: Sequence[RunPaths]) -> set[str]:
        """Return the ids of those that have ended, seen twice in a row: a leader's last write may be on its way."""
        if time.monotonic() - self._asked < _ASK_EVERY_S:
            return set()
        self._asked = time.monotonic()
        try:
            over = ended({p.id: self._places[p.id] for p in runs})
        except SiteError:
            return set()
        self._since = {run: self._since.get(run, 0) + 1 for run in over}
        return {run for run, times in self._since.items() if times > 1}


def cancel_jobs(job_ids: list[str]) -> None:
    """Cancel all jobs with one scancel. Raises SiteError."""
    if job_ids:
        _checked("scancel", *job_ids)


def _squeue(*options: str) -> list[str]:
    """Return the lines of squeue's answer; none where it knows no such job. Raises SiteError."""
    answer = _ask("squeue", "--noheader", *options)
    if not answer.ok and "invalid job id" not in answer.err.lower():
        raise SiteError(f"SLURM does not answer: {answer.problem}")
    return answer.out.splitlines() if answer.ok else []


def _checked(*words: str) -> None:
    answer = _ask(*words)
    if not answer.ok:
        raise SiteError(f"{words[0]} failed: {answer.problem}")


def _ask(*words: str) -> Answer:
    answer = ask(*words, timeout_s=_ANSWER_S)
    if answer.missing:
        raise SiteError(f"{words[0]} is not on the PATH: load SLURM's module")
    return answer
