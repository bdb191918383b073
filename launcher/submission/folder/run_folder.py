"""Write the files of a run's folder: those that runs of one submission share, and each run's own."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from launcher.opening import read_whole
from launcher.redact import redact_words
from launcher.run import event_lines, events
from launcher.run.files import write_atomic
from launcher.run.paths import RunPaths
from launcher.run.state import read_submission
from launcher.run.units import is_secret
from launcher.submission.folder import archive, snapshot
from launcher.submission.folder.replace_files import remove
from launcher.submission.plan.submission_plan import SubmissionPlan


def mode_in(folder: Path) -> int:
    """Return the permissions of a folder made in ``folder``: who may enter this one may enter that one."""
    return folder.stat().st_mode & 0o777


def write_shared(
    root: Path,
    plan: SubmissionPlan,
    scripts: Mapping[str, str],
    *,
    script_mode: int = 0o640,
    code: bool = True,
    argv: Sequence[str] | None = None,
) -> None:
    """Write into ``root`` what runs share: the code, the launcher, the sbatch ``scripts`` by name.

    ``code=False`` keeps the copy that is there. ``argv``: the command line, for environment.json; None writes none.
    Raises OSError or SnapshotError.
    """
    paths = RunPaths(root)
    if code:
        snapshot.copy_code(plan.code, paths.code, plan.link, snapshot=plan.snapshot, mode=mode_in(root))
    remove(paths.lib)  # a resubmission's; of a point of a sweep, a link
    snapshot.copy_launcher(paths.lib)
    if plan.staged is not None:
        archive.write(plan.staged)
    if argv is not None:
        write_environment(root, plan, argv)
    for name, text in scripts.items():
        write_atomic(root / name, text, mode=script_mode)


def write_environment(root: Path, plan: SubmissionPlan, argv: Sequence[str]) -> None:
    """Write environment.json: what the run is made from. Raises OSError."""
    made_from = snapshot.environment(plan.code, plan.interpreter, argv, os.environ)
    write_atomic(RunPaths(root).environment, json.dumps(made_from, indent=1) + "\n")


def write_own(
    plan: SubmissionPlan,
    *,
    by: Literal["submit", "resubmit"],
    changes: Sequence[str] = (),
    new: bool = False,
    durable: bool = True,
) -> None:
    """Write into the run's folder its job, spec, passed variables, secret, and the history's ``submitted``.

    The event is written before SLURM has the job: from then on the leader is the only writer. So it cannot hold the job
    id, which submission.json and ``attempt_started`` do. ``new``: nothing of it is there yet; such files are not fsynced,
    as a thousand points of a sweep would take a minute on a network file system. ``durable=False`` replaces the job and
    the spec without fsync. Raises OSError.
    """
    paths, spec = plan.paths, plan.spec
    put = partial(_put, new=new)
    put(paths.job, plan.job_yaml, durable=durable)
    put(paths.spec, spec.dumps(), durable=durable)
    put(paths.passed, json.dumps({k: os.environ[k] for k in spec.pass_names if k in os.environ}) + "\n", mode=0o600)
    if new or not _has_secret(paths.secret):
        put(paths.secret, secrets.token_hex(32) + "\n", mode=0o600)
    submitted = events.event(
        "submitted", attempt=None, job_id=None, backend=plan.backend, nodes=spec.nodes, spare_nodes=spec.spare_nodes,
        tasks_per_node=spec.tasks_per_node, gpus_per_node=spec.gpus_per_node, cpus_per_task=spec.cpus_per_task,
        least_nodes=spec.least_nodes, by=by, changes=redact_words(changes),
    )  # fmt: skip
    if new:
        put(paths.events, json.dumps(submitted.raw) + "\n")
    else:
        event_lines.append(paths.events, submitted)


def _has_secret(path: Path) -> bool:
    try:
        return is_secret(read_whole(path).decode().strip())
    except (OSError, ValueError):
        return False


def write_submission(path: Path, entry: Mapping[str, Any], *, new: bool = False) -> None:
    """Write submission.json: where the run is now, and all its submissions so far. ``new``: as in `write_own`."""
    before = [] if new else read_submission(path).get("submissions", [])
    _put(path, json.dumps({**entry, "submissions": [*before, entry]}) + "\n", new=new)


def _put(path: Path, text: str, *, new: bool, mode: int = 0o640, durable: bool = True) -> None:
    if not new:
        write_atomic(path, text, mode=mode, durable=durable)
        return
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.fchmod(fd, mode)
        left = memoryview(text.encode())
        while left:  # a disk that fills up takes a part, and refuses the next
            left = left[os.write(fd, left) :]
    finally:
        os.close(fd)
