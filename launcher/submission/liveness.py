"""Find out whether anything works on a run, and send it signals: through SLURM, or on this machine."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from launcher.errors import RunDirError, SiteError, StateError
from launcher.run import event_lines
from launcher.run.events import JobNamed, RunSubmitted
from launcher.run.files import NO_JSON, Damage
from launcher.run.paths import RunPaths
from launcher.run.processes import runs_here
from launcher.run.spec import RunSpec
from launcher.run.state import is_this_job, read_outcome, read_submission
from launcher.slurm.commands import Answer, ask
from launcher.slurm.handback import wait_to_cancel
from launcher.slurm.jobs import ENDED, SQUEUE_FORMAT, JobView, parse_squeue
from launcher.slurm.later_jobs import cancel_held
from launcher.submission.backends import local as local_backend

ASK_EVERY_S = 20.0
_ANSWER_S = 60.0
_LEAVING_S = 60.0


class RunLocation:
    """Where a run is: the job or processes of its latest submission."""

    def __init__(self, paths: RunPaths, submission: dict[str, Any]) -> None:
        self.paths = paths
        self._submission = submission
        self.backend = str(submission.get("backend"))
        self.hold = paths.beside(str(submission["hold"])) if submission.get("hold") else None
        """The hold in which the run, a rerun, trains: their job is one."""
        self._asked = float("-inf")
        self._state = "PENDING"

    @property
    def job_id(self) -> str:
        """SLURM's job id now, "" where none is known: a continuation has another one than the submission."""
        for event in reversed(event_lines.read(self.paths.events)):
            if isinstance(event, RunSubmitted):
                break
            if isinstance(event, JobNamed) and event.job_id:
                return event.job_id
        return str(self._submission.get("job_id") or "")

    @property
    def in_foreign_job(self) -> bool:
        """Whether it runs in an allocation that the user had before (salloc): that one stays."""
        named = self._submission.get("job_folder", "")  # an older version named none
        return self.backend == "slurm" and self.hold is None and named is None

    def slurm_state(self) -> str:
        """Return the job's state in SLURM; "" when SLURM knows no such job. Raises SiteError when SLURM does not answer."""
        self._asked, job_id = time.monotonic(), self.job_id
        if self.in_foreign_job and job_id:
            steps = _squeue("--steps", f"--jobs={job_id}", "--format=%j")
            self._state = "RUNNING" if self.paths.id in {line.strip() for line in steps.splitlines()} else ""
            return self._state
        shown = _squeue("--states=all", f"--jobs={job_id}", f"--format={SQUEUE_FORMAT}") if job_id else ""
        view = parse_squeue(shown).get(job_id)
        self._state = view.state if view is not None and self.has(view) else ""
        return self._state

    @property
    def latest_state(self) -> str:
        """What `slurm_state` said last, which `alive` asks every 20 s; PENDING before."""
        return self._state

    def has(self, job: JobView) -> bool:
        """Return whether the job is this run's."""
        return is_this_job(self._submission, self.paths.root, name=job.name, command=job.command)

    def alive(self, *, fresh: bool = False) -> bool:
        """Return whether something works on the run or will; also when SLURM does not answer.

        SLURM is asked if ``fresh``, else at most every 20 s.
        """
        if self.hold is not None and read_outcome(self.paths.outcome) is not None:
            return False
        if self.backend != "slurm":
            return self._runs_here() is not False
        try:
            again = fresh or time.monotonic() - self._asked >= ASK_EVERY_S
            return (self.slurm_state() if again else self._state) not in {"", *ENDED}
        except SiteError:
            return True

    def _runs_here(self) -> bool | None:
        said = self._submission
        return runs_here(said.get("host"), said.get("pid"), said.get("pid_started"))

    def ask_to_save(self) -> None:
        """Signal the leader that there is a request. Raises SiteError or StateError."""
        self.cancel("--signal=USR2")

    def cancel(self, *options: str) -> None:
        """Cancel: SLURM's scancel with ``options``, or TERM to the local controller. Raises SiteError or StateError."""
        if self.backend == "slurm":
            if not (job_id := self.job_id):
                raise StateError(f"{self.paths.id}: no job of SLURM is known to be this run's")
            scancel(*options, job_id)
            return
        alive, pid = self._runs_here(), self._submission.get("pid")
        if alive is None:
            raise StateError(f"{self.paths.id} runs on {self._submission.get('host')}: run this command there")
        if not alive or pid is None:
            raise StateError(f"{self.paths.id} is not running any more")
        if not local_backend.terminate(pid, self._submission.get("pid_started"), self.paths.root):
            raise StateError(
                f"{self.paths.id}: process {pid}, which submission.json names, is not known to be this run's, so it gets no signal"
            )


def spec_of(paths: RunPaths) -> RunSpec:
    """Return what the nodes know of the run. Raises RunDirError where its spec cannot be read."""
    try:
        return RunSpec.read(paths.spec)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
    except NO_JSON:
        why = "it is half-written or no spec"
    raise RunDirError(f"{paths.spec} cannot be read: {why}")


def is_hold(paths: RunPaths) -> bool:
    """Return whether the run only keeps an allocation; False where its spec cannot be read."""
    try:
        return spec_of(paths).hold
    except RunDirError:
        return False


def locate(paths: RunPaths) -> RunLocation:
    """Return where the run is. Raises StateError when it was never submitted, or its submission.json cannot be read."""
    damage: list[Damage] = []
    submission = read_submission(paths.submission, damage)
    if damage:
        raise StateError(f"{paths.submission} cannot be read ({damage[0].why}), so the job of the run is not known")
    if not submission:
        raise StateError(f"{paths.id} has no submission.json: it was never submitted")
    return RunLocation(paths, submission)


def open_jobs(jobs: Mapping[RunLocation, str], states: Collection[str] = ()) -> dict[RunLocation, str]:
    """Return those of ``jobs``, by run, that are the run's and have not ended, with one query; with ``states``, those in one of these.

    Raises SiteError.
    """
    parents = sorted({job.partition("_")[0] for job in jobs.values() if job})
    if not parents:
        return {}
    shown = parse_squeue(_squeue("--array", f"--jobs={','.join(parents)}", f"--format={SQUEUE_FORMAT}"))
    found = {job: view for job, view in shown.items() if (view.state in states if states else not view.ended)}
    left = {where: job for where, job in jobs.items() if job in found and where.has(found[job])}
    return {
        where: job for where, job in left.items() if where.hold is None or read_outcome(where.paths.outcome) is None
    }


def ended(runs: Collection[RunLocation]) -> set[str]:
    """Return the ids of the runs on which nothing works any more, with one query to SLURM. Raises SiteError."""
    alive = set(open_jobs({where: where.job_id for where in runs if where.backend == "slurm"}))
    alive |= {where for where in runs if where.backend != "slurm" and where.alive(fresh=True)}
    return {where.paths.id for where in runs if where not in alive}


def await_end(runs: Collection[RunLocation]) -> bool:
    """Wait until nothing works any more on runs that have an outcome; return False when something still does after a minute.

    The outcome is written some seconds before the last process ends. A batch script that finds no outcome would report that
    the leader had died.
    """
    end = time.monotonic() + _LEAVING_S
    while len(ended(runs)) < len(runs):
        if time.monotonic() > end:
            return False
        time.sleep(0.5)
    return True


def _squeue(*options: str) -> str:
    """Return squeue's answer; "" where it knows no such job. Raises SiteError."""
    answer = _ask("squeue", "--noheader", *options)
    if not answer.ok and "invalid job id" not in answer.err.lower():
        raise SiteError(f"SLURM does not answer: {answer.problem}")
    return answer.out if answer.ok else ""


def withdraw_early(paths: RunPaths) -> None:
    """Cancel the job that waits, held, for the next attempt of a run (``restart.queue_early``). Never raises."""
    try:
        spec = spec_of(paths)
    except RunDirError:
        return  # the job is held, and starts only when somebody releases it
    if spec.batch == "slurm" and spec.restart.queue_early:
        cancel_held(spec.id, besides=RunLocation(paths, read_submission(paths.submission)).job_id)


def scancel(*words: str) -> None:
    """Run scancel; to end jobs, when SLURM bears it. Raises SiteError."""
    if not any(word.startswith("--signal") for word in words):
        wait_to_cancel(words)
    answer = _ask("scancel", *words)
    if not answer.ok:
        raise SiteError(f"scancel failed: {answer.problem}")


def _ask(*words: str) -> Answer:
    answer = ask(*words, timeout_s=_ANSWER_S)
    if answer.missing:
        raise SiteError(f"{answer.problem}: load SLURM's module")
    return answer
