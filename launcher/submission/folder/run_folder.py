"""Write the files of a run's folder: those that runs of one submission share, and each run's own."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from launcher.errors import StateError
from launcher.opening import read_whole
from launcher.redact import redact_words
from launcher.run import event_lines, events, index
from launcher.run.files import read_object, write_atomic
from launcher.run.paths import RunPaths
from launcher.run.state import read_submission
from launcher.run.units import is_secret
from launcher.submission.folder import archive, make_folder, snapshot
from launcher.submission.plan.submission_plan import SubmissionPlan

_BEFORE = ".before."
_WRITTEN_OVER = ("submission.json", "job.yaml", "spec.json", "submit.sbatch")
"""What a resubmission replaces in one step: until then others read it. The first is kept first, and given up last."""


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
    _remove(paths.lib)  # a resubmission's; of a point of a sweep, a link
    snapshot.copy_launcher(paths.lib)
    if plan.staged is not None:
        archive.write(plan.staged)
    if argv is not None:
        write_about(root, plan, argv)
    for name, text in scripts.items():
        write_atomic(root / name, text, mode=script_mode)


def write_about(root: Path, plan: SubmissionPlan, argv: Sequence[str]) -> None:
    """Write environment.json: what the run is made from. Raises OSError."""
    about = snapshot.environment(plan.code, plan.interpreter, argv, os.environ)
    write_atomic(RunPaths(root).environment, json.dumps(about, indent=1) + "\n")


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


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let one command at a time resubmit what is in a run's or a sweep's folder, or remove it.

    Raises StateError while another one does, RunDirError where the folder cannot be written.
    """
    with make_folder.writing(folder):
        file = (folder / ".resubmitting").open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateError(f"{folder.name} is being resubmitted or removed by another command") from None
        except OSError:  # a file system without locks
            pass
        yield


def alone_with(paths: RunPaths) -> contextlib.AbstractContextManager[None]:
    """Let one command at a time resubmit the run, or points of its sweep, or remove what is left of it. Raises as `alone`."""
    above = paths.root.parent
    return alone(above if index.is_sweep(above) else paths.root)


@contextlib.contextmanager
def replacing(runs: Sequence[RunPaths], names: Sequence[str]) -> Iterator[None]:
    """Keep files of the runs' folders under another name while a resubmission inside replaces them, job and spec as well.

    After an error they are back, what was written in their places is removed, and each history has a warning. Without an
    error the old ones are removed; one that cannot be is left, as SLURM has the job. Raises OSError.

    `put_left_back` must have been called: what an earlier resubmission has left is overwritten.
    """
    over = [name for name in _WRITTEN_OVER if name not in names]
    kept_as = {paths.root / name: paths.root / f"{_BEFORE}{name}" for paths in runs for name in (*over, *names)}
    there = [old for old in kept_as if os.path.lexists(old)]
    try:
        for old in there:
            (_copy if old.name in over else os.replace)(old, kept_as[old])
        yield
    except BaseException as error:
        warning = events.event("warning", attempt=None, text=f"it was not resubmitted: {error}")
        with contextlib.ExitStack() as back:  # last in, first out; one that fails keeps no other from it
            for paths in runs:
                back.callback(event_lines.append, paths.events, warning)
            for old, kept in kept_as.items():
                back.callback(_put_back, old, kept, was_there=old in there)
        raise
    _forget(list(kept_as.values()))


def left_behind(paths: RunPaths) -> list[Path]:
    """Return the old files that a resubmission keeps; where none is at work, one has been killed."""
    return sorted(paths.root.glob(f"{_BEFORE}*"))


def put_left_back(runs: Sequence[RunPaths]) -> None:
    """Finish what a resubmission that was killed has left: the old files are back, unless it was recorded. Raises OSError."""
    for paths in runs:
        kept = left_behind(paths)
        before = paths.root / f"{_BEFORE}{paths.submission.name}"
        if read_object(before) != read_object(paths.submission):
            _forget([before, *kept])
            continue
        for path in sorted(kept, key=before.__eq__):  # last what tells whether it was recorded
            _put_back(path.with_name(path.name.removeprefix(_BEFORE)), path, was_there=True)


def _forget(kept: Sequence[Path]) -> None:
    for path in reversed(kept):
        with contextlib.suppress(OSError):
            _remove(path)


def _copy(old: Path, kept: Path) -> None:
    """Keep a file that will be replaced, not changed, under another name as well."""
    try:
        os.link(old, kept)
    except OSError:  # a file system without hard links
        shutil.copy2(old, kept)


def _put_back(old: Path, kept: Path, *, was_there: bool) -> None:
    moved = os.path.lexists(kept)
    if moved or not was_there:
        _remove(old)
    if moved:
        os.replace(kept, old)


def _remove(path: Path) -> None:
    """Remove a file, a folder or a link (not what it leads to), where there is one."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
