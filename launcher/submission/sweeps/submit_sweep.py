"""Submit a sweep: one array, each element a run of its own; code, launcher and script are written once.

``SWEEP/{sweep.json, code/, lib/, submitit/, submit-0.sbatch, index-0/0 -> ../POINT, POINT/...}``. A point's folder links
to what it shares. Above the site's MaxArraySize there are several arrays.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.config.document.source import dump_yaml
from launcher.config.load.load import LoadedJob, point_jobs
from launcher.config.load.sweep import expand
from launcher.errors import StateError
from launcher.frozen import frozen
from launcher.redact import redact_words
from launcher.run import index
from launcher.run.files import write_atomic
from launcher.run.held_signals import signals_held
from launcher.run.paths import SWEEP_FILE
from launcher.submission import submit
from launcher.submission.backends import slurm
from launcher.submission.facts.facts import Facts
from launcher.submission.folder import make_folder
from launcher.submission.folder.run_folder import write_own, write_shared, write_submission
from launcher.submission.plan.job_place import array_place
from launcher.submission.plan.plan import plan, sibling
from launcher.submission.plan.submission_plan import SubmissionPlan

_LINKED = ("code", "lib", "submitit", "environment.json")
_FOLDERS = ("attempts", "checkpoints", "logs")


@frozen
class PlannedPoint:
    """One run of a sweep, ready to be written."""

    plan: SubmissionPlan
    overrides: list[str]
    """``params.lr=0.1``, as a user would write them."""


@frozen
class SubmittedSweep:
    """A sweep that was handed over to SLURM."""

    root: Path
    points: tuple[PlannedPoint, ...]
    arrays: tuple[str, ...]
    """Job ids of the arrays."""


class _Texts:
    """Writes the YAML of jobs that differ in little: each section once, as a thousand whole texts take seconds."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[Any, str]] = {}

    def __call__(self, container: dict[str, Any]) -> str:
        return "".join(self._section(key, value) for key, value in container.items())

    def _section(self, key: str, value: Any) -> str:
        known = self._known.get((key, id(value)))
        if known is None:
            # The value is kept with its text: as long as it lives, no other value has its id.
            known = self._known[key, id(value)] = (value, dump_yaml({key: value}))
        return known[1]


def plan_points(loaded: LoadedJob, facts: Facts) -> list[list[PlannedPoint]]:
    """Plan the sweep's points, by array. Raises StateError without SLURM, and whatever `plan` raises."""
    root = f"{facts.runs_dir}/{facts.run_id}"
    tag = facts.run_id.rpartition("-")[2]
    most = expand(loaded.job.sweep).array_parallelism
    size = max(1, facts.slurm.max_array_size)
    planned: list[list[PlannedPoint]] = []
    jobs = point_jobs(loaded)
    width = max(3, len(str(len(jobs) - 1)))
    now = time.time()
    texts = _Texts()
    for point, job in jobs:
        if point.index % size == 0:
            planned.append([])
        run_id = index.new_id(job.name, now=now, tag=f"{tag}{point.index:0{width}d}")
        run_dir, text = f"{root}/{run_id}", texts(job.container)
        if planned[-1]:
            made = sibling(planned[-1][0].plan, job, facts, run_dir=run_dir, job_yaml=text)
        else:
            place = array_place(root, facts.run_id, f"{root}/index-{len(planned) - 1}")
            made = plan(job, facts, run_dir=run_dir, place=place, job_yaml=text)
        if made.backend != "slurm":
            raise StateError("a sweep needs SLURM: it is one array job; on this machine submit its points one by one")
        overrides = redact_words(
            [f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in point.overrides.items()]
        )
        planned[-1].append(PlannedPoint(made, overrides))
    for chunk in planned:  # the first point's parameters are the array's; several arrays share the limit
        first = chunk[0]
        at_once = len(chunk) if most is None else max(1, most // len(planned))
        parameters = {**first.plan.parameters, "array_parallelism": at_once}
        chunk[0] = replace(first, plan=replace(first.plan, parameters=parameters))
    return planned


def submit_points(loaded: LoadedJob, facts: Facts, argv: Sequence[str]) -> SubmittedSweep:
    """Plan, write and submit. On any failure nothing is left, neither queued nor on disk. Raises SubmitError and others."""
    chunks = submit.claim_folder(
        lambda now: plan_points(loaded, now), facts, lambda made: made[0][0].plan, folders=("submitit",)
    )
    first, most = chunks[0][0].plan, expand(loaded.job.sweep).array_parallelism
    root = Path(first.place.root)
    points = tuple(p for chunk in chunks for p in chunk)
    scripts = {f"submit-{i}.sbatch": chunk[0].plan.array_script(len(chunk)) for i, chunk in enumerate(chunks)}
    with contextlib.ExitStack() as last, contextlib.ExitStack() as undo, make_folder.writing(root):
        undo.callback(shutil.rmtree, root, ignore_errors=True)
        write_shared(root, first, scripts, argv=argv)
        for number, chunk in enumerate(chunks):
            _write_points(root, number, chunk)
        _write_sweep(root, points, [None] * len(points), most)
        ids: list[str] = []
        interrupted = last.enter_context(signals_held())
        for chunk in chunks:
            queued = slurm.submit_array(chunk[0].plan, [p.plan.run_dir for p in chunk], besides=ids)
            undo.callback(slurm.cancel_pending, queued)
            ids += queued
        entry = submit.submission_entry(first, ids[0], by="submit")
        for one, job_id in zip(points, ids, strict=True):
            mine = {**entry, "job_id": job_id, "sweep": {"id": root.name, "overrides": one.overrides}}
            write_submission(one.plan.paths.submission, mine, new=True)
        _write_sweep(root, points, ids, most)
        index.register(root)
        undo.callback(index.unregister, root.name)
        interrupted()
        undo.pop_all()
    return SubmittedSweep(root, points, tuple(dict.fromkeys(job_id.partition("_")[0] for job_id in ids)))


def _write_points(root: Path, number: int, chunk: Sequence[PlannedPoint]) -> None:
    """Write each point's folder, without fsync: a thousand points would take a minute on a network file system."""
    listing = f"{root}/index-{number}"
    first = chunk[0].plan
    mode = make_folder.mode_of(first.spec.share)
    make_folder.make(listing, mode)
    for place, one in enumerate(chunk):
        folder = one.plan.run_dir  # text, not a Path: joining fifteen names a point takes its time
        make_folder.make(folder, mode)
        for name in _FOLDERS:
            make_folder.make(f"{folder}/{name}", mode)
        for name in _LINKED:
            os.symlink(f"../{name}", f"{folder}/{name}")
        os.symlink(f"../submit-{number}.sbatch", one.plan.paths.sbatch)
        os.symlink(f"../{os.path.basename(folder)}", f"{listing}/{place}")
        write_own(one.plan, by="submit", changes=one.overrides, new=True)


def _write_sweep(root: Path, points: Sequence[PlannedPoint], ids: Sequence[str | None], most: int | None) -> None:
    listed = [
        {"run": one.plan.spec.id, "overrides": one.overrides, "job_id": job_id}
        for one, job_id in zip(points, ids, strict=True)
    ]
    value = {"id": root.name, "t": round(time.time(), 3), "array_parallelism": most, "points": listed}
    write_atomic(root / SWEEP_FILE, json.dumps(value) + "\n")
