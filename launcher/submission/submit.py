"""From a plan to a submitted run: the folder, the copies, the hand-over. ``submit`` is plan, then this."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from launcher.errors import LauncherError, SubmitError
from launcher.frozen import frozen
from launcher.run import index
from launcher.run.files import write_atomic
from launcher.run.paths import RunPaths
from launcher.run.processes import mark_of
from launcher.run.state import read_submission
from launcher.submission.backends import local, slurm
from launcher.submission.facts.facts import Facts
from launcher.submission.folder import rundir, snapshot
from launcher.submission.folder.write import write_own, write_shared
from launcher.submission.plan.plan import SubmissionPlan

__all__ = [
    "Submitted",
    "execute",
    "prepare",
    "record",
    "start",
    "submission_entry",
]

_TRIES = 20


@frozen
class Submitted:
    """A run that has been handed over."""

    plan: SubmissionPlan
    job_id: str
    """SLURM's job id, or the local controller's process id."""

    @property
    def paths(self) -> RunPaths:
        """The run's folder."""
        return RunPaths(Path(self.plan.run_dir))


def execute(
    make_plan: Callable[[Facts], SubmissionPlan],
    facts: Facts,
    *,
    argv: Sequence[str] = (),
    foreground: bool = False,
    job_id: str | None = None,
) -> Submitted:
    """Claim a folder, fill it, hand the run over. On any failure nothing is left, neither queued nor on disk.

    ``foreground`` stops short of starting a run: the caller starts the agents itself, on this machine or in ``job_id``.
    Raises RunDirError, SnapshotError or SubmitError.
    """
    plan, paths = claim(make_plan, facts)
    try:
        prepare(plan, paths, argv)
        if foreground and job_id is not None:
            record(paths, plan, job_id, by="submit", extra={"job_name": None, "job_folder": None})  # the user's own job
        else:
            job_id = str(os.getpid()) if foreground else start(plan)
            keep_or_cancel(paths, plan, job_id, by="submit")
    except BaseException:
        shutil.rmtree(paths.root, ignore_errors=True)
        raise
    index.register(paths.root)
    return Submitted(plan, job_id)


def claim(make_plan: Callable[[Facts], SubmissionPlan], facts: Facts) -> tuple[SubmissionPlan, RunPaths]:
    """The plan whose folder is now this process's alone; another id is drawn where somebody was quicker."""
    for _ in range(_TRIES):
        plan = make_plan(facts)
        snapshot.check_size(plan.code, plan.max_code_mb)
        if rundir.claim(Path(plan.run_dir), plan.spec.share):
            return plan, RunPaths(Path(plan.run_dir))
        facts = replace(facts, run_id=index.new_id(plan.spec.name))
    raise SubmitError(f"{plan.runs_dir}: no free name for a run of {plan.spec.name} in {_TRIES} tries")


def prepare(
    plan: SubmissionPlan,
    paths: RunPaths,
    argv: Sequence[str],
    *,
    by: Literal["submit", "resubmit"] = "submit",
    changes: Sequence[str] = (),
    code: bool = True,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Write everything the nodes will read. ``code=False`` keeps the copy that is there (a resubmission)."""
    scripts = {paths.sbatch.name: plan.sbatch} if plan.backend == "slurm" else {}
    made_from = (argv, os.environ if environ is None else environ) if code else None
    try:
        write_shared(paths.root, plan, scripts, code=code, made_from=made_from)
        write_own(str(paths.root), plan, by=by, changes=changes, environ=environ)
    except OSError as error:
        raise rundir.refuse(paths.root, error) from None


def start(plan: SubmissionPlan) -> str:
    """Hand the prepared run over and return its job id. Raises SubmitError; then nothing runs."""
    if plan.backend == "local":
        return str(local.submit(plan))
    return slurm.submit(plan.submitit_dir, plan.command, plan.parameters, plan.run_dir, plan.spec.pass_names)


def keep_or_cancel(paths: RunPaths, plan: SubmissionPlan, job_id: str, *, by: str) -> None:
    """Write down where the run is; a run that cannot be found again is taken back. Raises RunDirError."""
    try:
        record(paths, plan, job_id, by=by)
    except OSError as error:
        if plan.backend == "slurm":
            slurm.cancel_pending([job_id])
        elif int(job_id) != os.getpid():
            local.terminate(int(job_id), None)
        raise rundir.refuse(paths.root, error) from None


def submission_entry(
    plan: SubmissionPlan, job_id: str, *, by: str, extra: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """One submission, as submission.json tells it."""
    pid = int(job_id) if plan.backend == "local" else None
    return {
        "by": by,
        "backend": plan.backend,
        "job_id": job_id,
        "job_name": plan.parameters["job_name"] if plan.backend == "slurm" else None,
        "job_folder": plan.place.root,
        "submitted_t": round(time.time(), 3),
        "host": socket.gethostname(),
        "user": _user(),
        "pid": pid,
        "pid_started": mark_of(pid) if pid else None,
        "python": plan.interpreter.path,
        "launcher_python": sys.executable,
        "base_dir": plan.base_dir,
        "code_root": plan.code.root,
        "code_link": list(plan.link),
        **(extra or {}),
    }


def record(
    paths: RunPaths, plan: SubmissionPlan, job_id: str, *, by: str, extra: Mapping[str, Any] | None = None
) -> None:
    """Write submission.json: where the run is now, and all its submissions so far."""
    entry = submission_entry(plan, job_id, by=by, extra=extra)
    before = read_submission(paths.submission).get("submissions", [])
    write_atomic(paths.submission, json.dumps({**entry, "submissions": [*before, entry]}, indent=1) + "\n")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a passwd entry
        return str(os.getuid())


def one_sentence(error: LauncherError) -> str:
    """An error as part of another sentence."""
    return str(error).rstrip(".").replace("\n", "; ")
