"""Submit points of a sweep again: one array of all whose script is the same, each a new attempt of its own run.

``SWEEP/again-N/{lib/, submitit/, submit.sbatch, index/0 -> ../../POINT}``: what the array's elements share lies there, and
the points' links lead to it; points that still run keep the sweep's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from launcher.config.load.sweep import SWEPT
from launcher.errors import RunDirError, StateError
from launcher.frozen import frozen
from launcher.run.files import read_object
from launcher.run.held_signals import signals_held
from launcher.run.own_folder import require_own
from launcher.run.paths import SWEEP_FILE, RunPaths
from launcher.run.state import read_end, read_outcome
from launcher.slurm.later_jobs import cancel_named
from launcher.submission import resubmit, submit
from launcher.submission.backends import slurm
from launcher.submission.folder import make_folder, snapshot
from launcher.submission.folder.replace_files import kept_files, lock, replacing, restore_kept
from launcher.submission.folder.run_folder import mode_in, write_own, write_shared
from launcher.submission.liveness import await_end, ended, locate
from launcher.submission.plan.job_place import array_place
from launcher.submission.plan.submission_plan import SubmissionPlan
from launcher.submission.resubmit import Again, Resubmission
from launcher.submission.sweeps.points import points_of


@frozen
class AgainArray:
    """Points that were submitted again together."""

    job_id: str
    """Of the array; of the job, where it is one point."""
    runs: tuple[str, ...]
    plan: SubmissionPlan
    """The first point's: its warnings are everybody's."""


def resubmit_points(sweep: Path, points: Sequence[RunPaths], how: Again) -> list[AgainArray]:
    """Submit ``points``, which have ended, again: one array for those whose sbatch script is the same (all, as a rule).

    Raises ConfigError, StateError, CheckpointError, RunDirError or SubmitError; then every point is as before, and what
    was queued is taken back.
    """
    for paths in points:
        require_own(paths.root)
    with lock(sweep):
        return _resubmit_points(sweep, points, how)


def _resubmit_points(sweep: Path, points: Sequence[RunPaths], how: Again) -> list[AgainArray]:
    if not await_end([locate(paths) for paths in points]):
        raise StateError(f"{sweep.name}: some of these points are still ending in SLURM; try again in a minute")
    killed = any(map(kept_files, points))
    with make_folder.writing(sweep):
        restore_kept(points)
    if killed:
        _cancel_unknown(sweep)
    groups: dict[str, list[Resubmission]] = {}
    for paths in points:
        again = resubmit.prepare(paths, how)
        groups.setdefault(_script_key(again), []).append(again)
    with contextlib.ExitStack() as last, make_folder.writing(sweep), contextlib.ExitStack() as folders:
        chunks = [chunk for group in groups.values() for chunk in _chunks(sweep, group, folders)]
        with (
            replacing(points, (*_shared(how), RunPaths(sweep).outcome.name, RunPaths(sweep).passed.name)),
            contextlib.ExitStack() as queued,
        ):
            interrupted = last.enter_context(signals_held())
            ids = [_hand_over(ones, plans, queued) for ones, plans in chunks]
            for (ones, plans), job_ids in zip(chunks, ids, strict=True):
                for again, made, job_id in zip(ones, plans, job_ids, strict=True):
                    submit.record(made, job_id, by="resubmit", **again.sweep)
            interrupted()
            queued.pop_all()
            folders.pop_all()
    return [
        AgainArray(job_ids[0].partition("_")[0], tuple(one.paths.id for one in ones), plans[0])
        for (ones, plans), job_ids in zip(chunks, ids, strict=True)
    ]


def _cancel_unknown(sweep: Path) -> None:
    """Cancel the array of a command that was killed, which no point leads to: it would fail as it begins, and end the points."""
    known = {os.path.realpath(paths.submitit) for paths in points_of(sweep)}
    for root in sweep.glob("again-*"):
        if os.path.realpath(root / "submitit") not in known:
            cancel_named(f"{sweep.name}-{root.name}")


def failed_of(points: Sequence[RunPaths]) -> list[RunPaths]:
    """Return the points that failed, or whose processes died without an outcome. Raises SiteError."""
    without = {paths.id for paths in points if read_outcome(paths.outcome) is None}
    gone = ended([locate(paths) for paths in points if paths.id in without and paths.submission.exists()])
    over = [paths for paths in points if paths.id in gone or paths.id not in without]
    return [paths for paths in over if (read_end(paths) or {"state": "failed"}).get("state") == "failed"]


def _script_key(one: Resubmission) -> str:
    """Return a key that is equal for points with equal sbatch scripts: all of the job that a sweep may not vary."""
    shared = {key: value for key, value in one.loaded.container.items() if key not in (*SWEPT, "name")}
    return json.dumps([shared, str(one.base), one.code_root], sort_keys=True, default=str)


def _chunks(
    sweep: Path, group: list[Resubmission], folders: contextlib.ExitStack
) -> Iterator[tuple[list[Resubmission], list[SubmissionPlan]]]:
    """Yield the arrays of points that share a script: as many as the site's MaxArraySize makes necessary."""
    facts = group[0].facts(group[0].how.backend or "auto")
    size = max(1, facts.slurm.max_array_size)
    parts = [group[i : i + size] for i in range(0, len(group), size)]
    most = (read_object(sweep / SWEEP_FILE) or {}).get("array_parallelism")
    for part in parts:
        root = _claim(sweep)
        folders.callback(shutil.rmtree, root, ignore_errors=True)
        place = array_place(str(root), f"{sweep.name}-{root.name}", str(root / "index"))
        plans = [one.plan(replace(facts, run_id=one.paths.id), place) for one in part]
        if plans[0].backend != "slurm":
            raise StateError(
                "points of a sweep are resubmitted as one array, which needs SLURM: without it resubmit them one by one"
            )
        at_once = max(1, most // len(parts)) if isinstance(most, int) else len(part)
        said = dict.fromkeys(warning for made in plans for warning in made.warnings)
        parameters = {**plans[0].parameters, "array_parallelism": at_once}
        plans[0] = replace(plans[0], parameters=parameters, warnings=tuple(said))
        yield part, plans


def _claim(sweep: Path) -> Path:
    """Make a new folder ``again-N``."""
    for number in range(1, 10_000):
        root = sweep / f"again-{number}"
        with contextlib.suppress(FileExistsError):
            make_folder.make(root, mode_in(sweep))
            return root
    raise RunDirError(f"{sweep}: it was resubmitted 9,999 times")


def _shared(how: Again) -> tuple[str, ...]:
    """Return the names that lead from a point into the array's folder."""
    return ("lib", "submitit", "submit.sbatch", *(("code",) if how.fresh_code else ()))


def _hand_over(ones: list[Resubmission], plans: list[SubmissionPlan], queued: contextlib.ExitStack) -> list[str]:
    """Write the array's folder, let every point lead to it, and submit; return the points' job ids."""
    first, how = plans[0], ones[0].how
    root = Path(first.place.root)
    for name in ("submitit", "index"):
        make_folder.make(root / name, mode_in(root))
    if how.fresh_code:
        snapshot.check_size(first.code, first.max_code_mb)
    else:
        (root / "code").symlink_to("../code")
    write_shared(root, first, {"submit.sbatch": first.array_script(len(plans))}, script_mode=0o600, code=how.fresh_code)
    for number, (one, made) in enumerate(zip(ones, plans, strict=True)):
        paths = one.paths
        for name in _shared(how):
            (paths.root / name).symlink_to(f"../{root.name}/{name}")
        (root / "index" / str(number)).symlink_to(f"../../{paths.id}")
        paths.request.unlink(missing_ok=True)
        write_own(made, by="resubmit", changes=how.overrides, durable=False)
    job_ids = slurm.submit_array(first, [made.run_dir for made in plans])
    queued.callback(slurm.cancel_pending, job_ids)
    return job_ids
