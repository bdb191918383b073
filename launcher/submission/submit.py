"""Submit a plan: make and fill the run's folder, then hand the run over to SLURM or to this machine."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from launcher.errors import SubmitError
from launcher.frozen import frozen
from launcher.run import index
from launcher.run.held_signals import signals_held
from launcher.run.paths import RunPaths
from launcher.run.processes import mark_of
from launcher.submission.backends import local, slurm
from launcher.submission.facts.facts import Facts
from launcher.submission.folder import make_folder, snapshot
from launcher.submission.folder.run_folder import write_own, write_shared, write_submission
from launcher.submission.plan.submission_plan import SubmissionPlan

_T = TypeVar("_T")

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
        return self.plan.paths


def submit_run(
    make_plan: Callable[[Facts], SubmissionPlan],
    facts: Facts,
    *,
    argv: Sequence[str] = (),
    job_id: str | None = None,
    listed: bool = True,
    recorded: Callable[[Submitted], None] = lambda _: None,
    write: Callable[[SubmissionPlan], None] | None = None,
    **said: Any,
) -> Submitted:
    """Make a folder, fill it, hand the run over. On any failure, Ctrl-C included, nothing is left, neither queued nor on disk.

    ``job_id`` stops short of starting a run: the caller starts the agents itself, in that job of its own or, for a local
    plan, as children of the process of that id. ``recorded`` is told of the run before any signal that came takes effect: a caller that
    is interrupted then knows of a run that nobody runs (`forget_run`).

    ``listed=False`` keeps its name out of the index. ``write`` fills the folder in place of `write_run`; ``said``: what else
    submission.json says. Raises RunDirError, SnapshotError or SubmitError.
    """
    plan = claim_folder(make_plan, facts, lambda made: made)
    root = plan.paths.root
    with contextlib.ExitStack() as last, contextlib.ExitStack() as undo, make_folder.writing(root):
        undo.callback(shutil.rmtree, root, ignore_errors=True)
        write(plan) if write is not None else write_run(plan, argv)
        own = {"job_name": None, "job_folder": None} if job_id and plan.backend == "slurm" else {}  # not the run's job
        interrupted = last.enter_context(signals_held())
        if job_id is None:
            job_id = hand_over(plan)
            undo.callback(take_back, plan, job_id)
        record(plan, job_id, **{"by": "submit", **own, **said})
        if listed:
            index.register(root)
            undo.callback(index.unregister, root.name)
        interrupted()
        undo.pop_all()
        one = Submitted(plan, job_id)
        recorded(one)
    return one


def forget_run(paths: RunPaths) -> None:
    """Take away a run that was made and never began: its folder, and its name in the list of runs."""
    with signals_held():
        index.unregister(paths.id)
        shutil.rmtree(paths.root, ignore_errors=True)


def take_back(plan: SubmissionPlan, job_id: str) -> None:
    """End what `hand_over` started, as its run could not be recorded."""
    if plan.backend == "slurm":
        slurm.cancel_pending([job_id])
    else:
        local.terminate(int(job_id), mark_of(int(job_id)), plan.paths.root)


def claim_folder(
    make: Callable[[Facts], _T],
    facts: Facts,
    plan_of: Callable[[_T], SubmissionPlan],
    folders: Sequence[str] = make_folder.SUBFOLDERS,
) -> _T:
    """Plan, and make the folder; draw another id while the folder exists already. Returns what ``make`` made.

    Raises RunDirError, SnapshotError or SubmitError.
    """
    name = index.job_name(facts.run_id)
    for _ in range(_TRIES):
        made = make(facts)
        plan = plan_of(made)
        snapshot.check_size(plan.code, plan.max_code_mb)
        if make_folder.make_run_folder(Path(plan.place.root), plan.spec.share, folders):
            return made
        facts = replace(facts, run_id=index.new_id(name))
    raise SubmitError(f"{facts.runs_dir}: no free name for {name} in {_TRIES} tries")


def write_run(
    plan: SubmissionPlan,
    argv: Sequence[str],
    *,
    by: Literal["submit", "resubmit"] = "submit",
    changes: Sequence[str] = (),
    code: bool = True,
) -> None:
    """Write everything that the nodes read. ``code=False`` keeps the copy that is there (a resubmission)."""
    paths = plan.paths
    scripts = {paths.sbatch.name: plan.sbatch} if plan.backend == "slurm" else {}
    with make_folder.writing(paths.root):
        write_shared(paths.root, plan, scripts, code=code, argv=argv if code else None)
        write_own(plan, by=by, changes=changes)


def hand_over(plan: SubmissionPlan) -> str:
    """Hand the prepared run over and return its job id. Raises SubmitError; then nothing runs."""
    if plan.backend == "local":
        return str(local.start_detached(plan))
    return slurm.submit_array(plan, [plan.run_dir])[0]


def submission_entry(plan: SubmissionPlan, job_id: str, *, by: str, **extra: Any) -> dict[str, Any]:
    """Return one submission's entry in submission.json."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a passwd entry
        user = str(os.getuid())
    pid = int(job_id) if plan.backend == "local" else None
    return {
        "by": by,
        "backend": plan.backend,
        "job_id": job_id,
        "job_name": plan.parameters["job_name"] if plan.backend == "slurm" else None,
        "job_folder": plan.place.root,
        "submitted_t": round(time.time(), 3),
        "host": socket.gethostname(),
        "user": user,
        "pid": pid,
        "pid_started": mark_of(pid) if pid else None,
        "python": plan.interpreter.path,
        "launcher_python": sys.executable,
        "base_dir": plan.base_dir,
        "submit_dir": plan.submit_dir,
        "code_root": plan.code.root,
        "code_link": list(plan.link),
        **extra,
    }


def record(plan: SubmissionPlan, job_id: str, *, by: str, **extra: Any) -> None:
    """Write submission.json. Raises OSError."""
    write_submission(plan.paths.submission, submission_entry(plan, job_id, by=by, **extra))
