"""Submit points of a sweep again: one array of all whose script is the same, each a new attempt of its own run.

``SWEEP/again-N/{lib/, submitit/, submit.sbatch, index/0 -> ../../POINT}``: what the array's elements share lies there, and
the points' links lead to it; points that still run keep the sweep's own.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from launcher.config.load.load import LoadedJob
from launcher.config.load.sweep import SWEPT
from launcher.errors import RunDirError, StateError
from launcher.frozen import frozen
from launcher.run.files import read_object
from launcher.run.index import SWEEP_FILE
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome, read_submission
from launcher.submission import resubmit, submit
from launcher.submission.backends import slurm
from launcher.submission.facts.facts import Facts
from launcher.submission.folder import rundir, snapshot
from launcher.submission.folder.run_folder import ReplacedFiles, mode_in, write_own, write_shared
from launcher.submission.liveness import await_end, ended, locate
from launcher.submission.plan.plan import SubmissionPlan, plan
from launcher.submission.plan.script import JobPlace, array_place, render_script
from launcher.submission.resubmit import Again


@frozen
class AgainArray:
    """Points that were submitted again together."""

    job_id: str
    """Of the array; of the job, where it is one point."""
    runs: tuple[str, ...]
    plan: SubmissionPlan
    """The first point's: its warnings are everybody's."""


@frozen
class _One:
    paths: RunPaths
    loaded: LoadedJob
    base: Path
    code_root: str
    step: int | None


def resubmit_points(sweep: Path, points: Sequence[RunPaths], how: Again) -> list[AgainArray]:
    """Submit ``points``, which have ended, again: one array for those whose sbatch script is the same (all, as a rule).

    Raises ConfigError, StateError, CheckpointError, RunDirError or SubmitError; then every point is as before, and what
    was queued is taken back.
    """
    if not await_end([locate(paths) for paths in points]):
        raise StateError(f"{sweep.name}: some of these points are still ending in SLURM; try again in a minute")
    ones = [_one(paths, how) for paths in points]
    groups: dict[str, list[_One]] = {}
    for one in ones:
        groups.setdefault(_script_key(one), []).append(one)
    chunks: list[_Chunk] = []
    try:
        for group in groups.values():
            chunks.extend(_chunks(sweep, group, how))
        for chunk in chunks:
            chunk.hand_over(how)
    except BaseException as error:
        if queued := [chunk.ids[0].partition("_")[0] for chunk in chunks if chunk.ids]:
            slurm.cancel_pending(queued)
        for chunk in chunks:
            chunk.put_back(error)
        if isinstance(error, OSError):
            raise rundir.folder_error(sweep, error) from None
        raise
    return [chunk.keep() for chunk in chunks]


def failed_of(points: Sequence[RunPaths]) -> list[RunPaths]:
    """Return the points that failed, or whose processes died without an outcome. Raises SiteError."""
    outcomes = {paths.id: read_outcome(paths.outcome) for paths in points}
    open_ = {paths.id: locate(paths) for paths in points if outcomes[paths.id] is None and paths.submission.exists()}
    failed = ended(open_) | {run for run, outcome in outcomes.items() if outcome and outcome.get("state") == "failed"}
    return [paths for paths in points if paths.id in failed]


def _one(paths: RunPaths, how: Again) -> _One:
    before = read_submission(paths.submission)
    base = Path(str(before.get("base_dir") or paths.root))
    step = resubmit.choose_step(paths, how.step) if how.step is not None else None
    return _One(paths, resubmit.load_again(paths, base, how), base, str(before.get("code_root") or base), step)


def _script_key(one: _One) -> str:
    """Return a key that is equal for points with equal sbatch scripts: all of the job that a sweep may not vary."""
    shared = {key: value for key, value in one.loaded.container.items() if key not in (*SWEPT, "name")}
    return json.dumps([shared, str(one.base), one.code_root], sort_keys=True, default=str)


def _chunks(sweep: Path, group: list[_One], how: Again) -> Iterator[_Chunk]:
    """Yield the arrays of points that share a script: as many as the site's MaxArraySize makes necessary."""
    facts = resubmit.facts_again(group[0].loaded, group[0].paths, how.backend or "auto", how, group[0].code_root)
    size = max(1, facts.slurm.max_array_size)
    parts = [group[i : i + size] for i in range(0, len(group), size)]
    most = (read_object(sweep / SWEEP_FILE) or {}).get("array_parallelism")
    for part in parts:
        root = _claim(sweep, how.fresh_code)
        place = array_place(str(root), f"{sweep.name}-{root.name}", str(root / "index"))
        try:
            plans = [_plan(one, replace(facts, run_id=one.paths.id), place, how) for one in part]
        except BaseException:
            shutil.rmtree(root, ignore_errors=True)
            raise
        at_once = max(1, most // len(parts)) if isinstance(most, int) else len(part)
        plans[0] = replace(plans[0], parameters={**plans[0].parameters, "array_parallelism": at_once})
        yield _Chunk(root, [one.paths for one in part], plans)


def _plan(one: _One, facts: Facts, place: JobPlace, how: Again) -> SubmissionPlan:
    made = plan(one.loaded, facts, run_dir=str(one.paths.root), place=place)
    if made.backend != "slurm":
        raise StateError(
            "points of a sweep are resubmitted as one array, which needs SLURM: without it resubmit them one by one"
        )
    return resubmit.with_loading(replace(made, spec=replace(made.spec, resume_step=one.step)), how)


def _claim(sweep: Path, fresh_code: bool) -> Path:
    """Make a new folder ``again-N``."""
    for number in range(1, 10_000):
        root = sweep / f"again-{number}"
        try:
            rundir.make(root, mode_in(sweep))
            if not fresh_code:
                (root / "code").symlink_to("../code")
            return root
        except FileExistsError:
            continue
        except OSError as error:
            raise rundir.folder_error(root, error) from None
    raise RunDirError(f"{sweep}: it was resubmitted 9,999 times")


class _Chunk:
    """Points that become one array; until `keep`, all of it can be undone."""

    def __init__(self, root: Path, points: list[RunPaths], plans: list[SubmissionPlan]) -> None:
        self.root = root
        self.points = points
        self.plans = plans
        self.ids: list[str] = []
        self._replaced: dict[str, ReplacedFiles] = {}

    def hand_over(self, how: Again) -> None:
        """Set every point's old end aside, and submit."""
        first = self.plans[0]
        shared = ("lib", "submitit", "submit.sbatch", *(("code",) if how.fresh_code else ()))
        self._write_shared(first, how)
        for number, (paths, made) in enumerate(zip(self.points, self.plans, strict=True)):
            old = self._replaced[paths.id] = ReplacedFiles(paths.root, (*shared, paths.outcome.name))
            old.set_aside()
            for name in shared:
                (paths.root / name).symlink_to(f"../{self.root.name}/{name}")
            (self.root / "index" / str(number)).symlink_to(f"../../{paths.id}")
            paths.request.unlink(missing_ok=True)
            write_own(str(paths.root), made, by="resubmit", changes=how.overrides, durable=False)
        run_dirs = [p.run_dir for p in self.plans]
        self.ids = slurm.submit_array(first, run_dirs)

    def _write_shared(self, first: SubmissionPlan, how: Again) -> None:
        for name in ("submitit", "index"):
            rundir.make(self.root / name, mode_in(self.root))
        if how.fresh_code:
            snapshot.check_size(first.code, first.max_code_mb)
        points = len(self.points) if len(self.points) > 1 else None
        text = render_script(first.command, first.place.submitit, first.parameters, points=points)
        write_shared(self.root, first, {"submit.sbatch": text}, script_mode=0o600, code=how.fresh_code)

    def put_back(self, error: BaseException) -> None:
        """Restore every point; nothing of the array stays."""
        for old in self._replaced.values():
            old.put_back()
            resubmit.note_refusal(RunPaths(old.root), error)
        shutil.rmtree(self.root, ignore_errors=True)

    def keep(self) -> AgainArray:
        """Record where the points are now, and remove what was set aside."""
        for paths, made, job_id in zip(self.points, self.plans, self.ids, strict=True):
            sweep = read_submission(paths.submission).get("sweep")
            submit.record(paths, made, job_id, by="resubmit", extra={"sweep": sweep} if sweep else None)
            self._replaced[paths.id].forget()
        return AgainArray(self.ids[0].partition("_")[0], tuple(p.id for p in self.points), self.plans[0])
