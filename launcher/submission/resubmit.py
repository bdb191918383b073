"""Submit a run again: as another attempt of itself, or as a new run that begins from one of its checkpoints."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.config.load.load import LoadedJob, load_layers, renamed
from launcher.config.load.merge import command_line
from launcher.config.load.site_profile import Layer, read_document, read_layers, site_paths
from launcher.config.load.trust import doubt, doubt_of_job, refuse
from launcher.errors import CheckpointError, ConfigError, StateError
from launcher.frozen import frozen
from launcher.run import event_lines, index
from launcher.run.after import Predecessor
from launcher.run.events import FirstStep, RerunEnded, RerunStarted, Saved
from launcher.run.files import read_object
from launcher.run.held_signals import signals_held
from launcher.run.own_folder import require_own
from launcher.run.paths import RunPaths
from launcher.run.state import read_end, read_outcome, read_submission
from launcher.run.units import short_list, whole_number
from launcher.run.worker_texts import UNSAFE_LOAD
from launcher.slurm.later_jobs import cancel_named
from launcher.submission import submit
from launcher.submission.dependencies import check_same_backend, predecessors
from launcher.submission.facts import code_files, gather
from launcher.submission.facts.facts import BackendName, CodeFacts, Facts
from launcher.submission.folder import make_folder, snapshot
from launcher.submission.folder.replace_files import kept_files, kept_name, lock_run, replacing, restore_kept
from launcher.submission.liveness import await_end, is_hold, locate, withdraw_early
from launcher.submission.plan.job_place import JobPlace
from launcher.submission.plan.plan import plan
from launcher.submission.plan.submission_plan import SubmissionPlan
from launcher.submission.submit import Submitted

_LEAVES_S = 20.0
_OWN_BYTES = 16 << 20
"""A run's own job.yaml has every alias written out, and an older version took larger files."""


@frozen(kw_only=True)
class Again:
    """How to submit a run again."""

    overrides: tuple[str, ...] = ()
    """Changed keys of the job, ``key=value``."""
    step: int | None = None
    """The checkpoint to go on from; None: the latest."""
    unsafe_load: bool = False
    """Checkpoints that cannot be loaded safely may be unpickled in full."""
    fresh_code: bool = False
    """Copy the current code instead of keeping the run's copy."""
    backend: BackendName | None = None
    """None: the one it had."""
    trusted: bool = False
    """The user vouches for the run's job and code, whoever owns them."""
    argv: tuple[str, ...] = ()

    def changes(self, section: str) -> list[str]:
        """Return the changed keys that are ``section`` or below it."""
        keys = (text.partition("=")[0].strip() for text in self.overrides)
        return [key for key in keys if key.partition(".")[0] == section]


def checkpoint_steps(paths: RunPaths) -> list[int]:
    """Return the steps of the committed checkpoints, ascending; the leader verifies that they are whole."""
    names = (path.parent.name.removeprefix("step-") for path in paths.checkpoints.glob("step-*/manifest.json"))
    return sorted(number for name in names if (number := whole_number(name)) is not None)


def choose_step(paths: RunPaths, step: int | None) -> int | None:
    """Return the step to begin from. Raises CheckpointError when there is no checkpoint of ``step``."""
    steps = checkpoint_steps(paths)
    if step is None:
        return steps[-1] if steps else None
    if step not in steps:
        there = f"it has those of steps {', '.join(f'{s:,}' for s in steps[-8:])}" if steps else "it has none"
        raise CheckpointError(f"{paths.id} has no checkpoint of step {step:,}: {there}")
    return step


@frozen(kw_only=True)
class Resubmission:
    """A run to submit again."""

    paths: RunPaths
    how: Again
    loaded: LoadedJob
    """Its own job with the changes."""
    base: Path
    """What relative paths of the job are relative to."""
    submit_dir: str
    """Where it was submitted first; "" where an older version has not noted it."""
    code_root: str
    """Where its code was copied from."""
    step: int | None
    """The checkpoint that `Again.step` names."""
    after: tuple[Predecessor, ...]
    """The runs that it waits for: those of a changed ``after`` alone, as the others have ended."""
    resume: str | None
    """The checkpoint that it was forked from: it begins there until it has one of its own."""
    backend: BackendName
    sweep: dict[str, Any]
    """Its sweep, by the key of submission.json; empty for a run of no sweep."""

    def facts(self, backend: BackendName) -> Facts:
        """Gather facts for another attempt; it keeps its own copy of the code unless fresh code is wanted."""
        about = gather.script_facts(self.loaded.job.script or "", self.paths.code.resolve())
        code = None if self.how.fresh_code else CodeFacts(root=self.code_root, kept=True, **about)
        beside = self.paths.root.parent if self.sweep else self.paths.root
        return gather.gather_facts(
            self.loaded, backend=backend, code=code, run_id=self.paths.id, after=self.after, lies_in=beside.parent,
            submit_dir=self.submit_dir,
        )  # fmt: skip

    def plan(self, facts: Facts, place: JobPlace | None = None) -> SubmissionPlan:
        """Plan another attempt in the run's folder."""
        made = plan(self.loaded, facts, run_dir=str(self.paths.root), place=place)
        check_same_backend(list(self.after), made.backend)
        lost = [] if self.step is not None else _lost_checkpoints(self.paths, self.resume)
        spec = replace(made.spec, resume_step=self.step, resume=self.resume)
        return _with_loading(replace(made, spec=spec, warnings=(*made.warnings, *lost)), self.how)


def _lost_checkpoints(paths: RunPaths, resume: str | None) -> list[str]:
    """Return the warning that the run had saved, but that no checkpoint is there to continue from."""
    if checkpoint_steps(paths):
        return []
    newest = 0
    for e in event_lines.read(paths.events, Saved, FirstStep):
        match e:
            case Saved(step=int(step)):
                newest = max(newest, step)
            case FirstStep(step=int(step)):  # it had gone back
                newest = min(newest, step - 1)
    begins = f"from {resume}" if resume else "from scratch"
    text = f"{paths.id} saved step {newest:,}, but no checkpoint is in {paths.checkpoints}: training begins {begins}"
    return [text] if newest else []


def prepare(paths: RunPaths, how: Again, *, forks: bool = False) -> Resubmission:
    """Load the run's own job with the changes, under the site's rules of today; locked keys stay locked.

    ``forks``: for a new run. Raises StateError for a run that somebody else can write in, and for an ``after`` that cannot be waited
    for, ConfigError, also for a change that would change nothing, CheckpointError, and TrustError for code of others.
    """
    require_own(paths.root)
    before = read_submission(paths.submission)
    _refuse_idle(paths, how, forks=forks, point="sweep" in before)
    loaded = own_job(paths, how.overrides, fresh_code=how.fresh_code, trusted=how.trusted)
    return Resubmission(
        paths=paths,
        how=how,
        step=None if how.step is None else choose_step(paths, how.step),
        after=tuple(predecessors(loaded.job.after)) if how.changes("after") else (),
        resume=(read_object(paths.spec) or {}).get("resume"),
        loaded=loaded,
        base=loaded.base_dir,
        submit_dir=str(before.get("submit_dir") or ""),
        code_root=str(before.get("code_root") or loaded.base_dir),
        backend=how.backend or ("local" if before.get("backend") == "local" else "auto"),
        sweep={"sweep": before["sweep"]} if "sweep" in before else {},
    )


def _refuse_idle(paths: RunPaths, how: Again, *, forks: bool, point: bool) -> None:
    """Refuse a change that would change nothing. Raises ConfigError."""
    run, new = paths.id, "--fork NAME makes a new run"
    idle = {
        "name": f"name changes nothing: {'--fork NAME names the new run' if forks else f'{run} keeps its name; {new}'}",
    }
    if not how.fresh_code:
        idle["code"] = (
            f"code changes nothing without --code: {run} keeps its own copy of the code; --code copies it anew"
        )
    if not forks:
        idle["runs_dir"] = f"runs_dir changes nothing: {run} stays in its folder; {new}"
    if point and not forks:
        idle["share"] = f"share changes nothing: {run} lies in the folder of its sweep; chmod that"
    for key, why in idle.items():
        if how.changes(key):
            raise ConfigError(why)


def own_job(
    paths: RunPaths, overrides: Sequence[str], script_args: Sequence[str] = (), *, fresh_code: bool, trusted: bool
) -> LoadedJob:
    """Load a run's own job with changes, under the site's rules of today. ``fresh_code``: the current code will be copied.

    Raises ConfigError, and TrustError for code of others.
    """
    base = Path(str(read_submission(paths.submission).get("base_dir") or paths.root))
    profile, layers = read_layers(site_paths())
    document = read_document(paths.job, _OWN_BYTES)
    strange = doubt_of_job(paths.job, document)
    layers += [Layer(str(paths.job), document), command_line(overrides, script_args)]
    loaded = load_layers(layers, base, str(paths.job), profile, check_code=fresh_code)
    if not trusted:
        refuse(strange or doubt(loaded.executed if fresh_code else [paths.code]))
    return replace(loaded, trusted=trusted)


def _await_rerun_end(hold: RunPaths, paths: RunPaths) -> None:
    """Wait, at most some seconds, until the leader of an ended rerun has left: it removes the passed variables last."""
    end = time.monotonic() + _LEAVES_S
    while read_outcome(paths.outcome) is not None and time.monotonic() < end:
        told = event_lines.read(hold.events, RerunStarted, RerunEnded)
        if not told or not isinstance(told[-1], RerunStarted) or told[-1].run != paths.id:
            return
        time.sleep(0.2)


def _refuse_hold(paths: RunPaths) -> None:
    """Refuse what is not the user's own, and a hold, which has trained nothing. Raises StateError."""
    require_own(paths.root)
    if is_hold(paths):
        raise StateError(f"{paths.id} is a hold: launcher hold JOB takes a new allocation")


def resubmit(paths: RunPaths, how: Again) -> Submitted:
    """Continue the run as a new attempt of itself. Raises StateError while anything still works on it, or nothing is left."""
    _refuse_hold(paths)
    with lock_run(paths):
        return _resubmit(paths, how)


def _resubmit(paths: RunPaths, how: Again) -> Submitted:
    if read_submission(paths.submission):
        where = locate(paths)
        if where.hold is not None:
            _await_rerun_end(where.hold, paths)
        if where.alive(fresh=True) and (read_outcome(paths.outcome) is None or not await_end([where])):
            raise StateError(f"{paths.id} has not ended: run launcher cancel {paths.id} --save first")
    with make_folder.writing(paths.root):
        if kept_files(paths):
            # By a command that was killed: its job, if SLURM has one, would fail as it begins, and end the run.
            cancel_named(paths.id)
        restore_kept([paths])
    outcome = read_end(paths) or {}
    if outcome.get("state") == "completed" and how.step is None and not (how.overrides or how.fresh_code):
        raise StateError(_nothing_left(paths, outcome.get("step")))
    again = prepare(paths, how)
    made = again.plan(again.facts(again.backend))
    if how.fresh_code:
        snapshot.check_size(made.code, made.max_code_mb)
    elif changed := _changed_code(paths, made):
        made = replace(made, warnings=(*made.warnings, changed))
    withdraw_early(paths)
    own_code = (paths.code.name, paths.copied.name) if how.fresh_code else ()
    replaced = [paths.outcome.name, paths.passed.name, *own_code]
    with (
        contextlib.ExitStack() as last,
        make_folder.writing(paths.root),
        replacing([paths], replaced),
        contextlib.ExitStack() as queued,
    ):
        paths.request.unlink(missing_ok=True)
        submit.write_run(made, how.argv, by="resubmit", changes=how.overrides, code=how.fresh_code)
        if how.fresh_code and not paths.code.is_symlink() and not kept_name(paths.code).is_symlink():
            snapshot.carry_over(kept_name(paths.code), read_object(kept_name(paths.copied)) or {}, paths.code)
        interrupted = last.enter_context(signals_held())
        job_id = submit.hand_over(made)
        queued.callback(submit.take_back, made, job_id)
        submit.record(made, job_id, by="resubmit", **again.sweep)
        interrupted()
        queued.pop_all()
    if how.changes("share"):
        make_folder.open_to(paths.root, made.spec.share)
    index.register(paths.root)
    return Submitted(made, job_id)


def _nothing_left(paths: RunPaths, step: int | None) -> str:
    """Return what a user can do with a run that has completed."""
    done = f"completed at step {step}" if step else "completed"  # a script may count none
    work = (read_object(paths.spec) or {}).get("work") or {}
    change = "-- --epochs 20" if work.get("kind") in ("script", "module") else "params.epochs=20"
    return f"{paths.id} {done}: nothing is left to do. Change its job ({change}), go back (--from STEP) or start a new run from it (--fork NAME)"


def _with_loading(made: SubmissionPlan, how: Again) -> SubmissionPlan:
    """Return the plan with `Again.unsafe_load`, and a warning of what that means."""
    if not how.unsafe_load:
        return made
    text = f"{UNSAFE_LOAD}: a checkpoint that cannot be loaded safely is unpickled in full, and any code in it runs"
    return replace(made, spec=replace(made.spec, unsafe_load=True), warnings=(*made.warnings, text))


def _changed_code(paths: RunPaths, made: SubmissionPlan) -> str:
    """Return the warning that the user has changed the code that the run was copied from; empty without a change."""
    root, copy = Path(made.code.root), paths.code
    a_copy_itself = (
        root.parent / paths.spec.name
    ).exists()  # a fork's code is another run's copy, which that run writes in
    if copy.is_symlink() or copy == root or a_copy_itself or not root.is_dir():
        return ""
    skip = [root / name for name in made.link] + [paths.root.parent, Path(made.runs_dir)]
    try:
        differ = snapshot.changed(paths, root, skip)
    except ConfigError as error:  # the run has its copy
        return f"whether its code has changed is not known: {error}"
    if not differ:
        return ""
    return f"{short_list(differ)} in {root} changed since the run was submitted: it keeps its own copy (--code copies it anew)"


def _copy_of(paths: RunPaths, loaded: LoadedJob) -> CodeFacts:
    if not loaded.job.code.snapshot:
        return CodeFacts(root=str(paths.code.resolve()))
    return code_files.listing_of_copy(paths, [Path(name) for name in loaded.job.code.link])


def fork(paths: RunPaths, name: str, how: Again) -> Submitted:
    """Submit a new run called ``name`` that begins from a checkpoint of this one. Raises CheckpointError when there is none."""
    _refuse_hold(paths)
    if kept_files(paths):
        with lock_run(paths), make_folder.writing(paths.root):
            restore_kept([paths])
    step = choose_step(paths, how.step)
    if step is None:
        raise CheckpointError(f"{paths.id} has no checkpoint to fork from")
    again = prepare(paths, how, forks=True)
    loaded = renamed(again.loaded, name)
    code = None if how.fresh_code else _copy_of(paths, loaded)
    facts = gather.gather_facts(
        loaded,
        backend=again.backend,
        code=code,
        after=again.after,
        skip=[paths.root.parent],
        submit_dir=again.submit_dir,
    )

    def make(now: Facts) -> SubmissionPlan:
        made = plan(loaded, now)
        check_same_backend(list(again.after), made.backend)
        return _with_loading(replace(made, spec=replace(made.spec, resume=str(paths.checkpoint(step)))), how)

    return submit.submit_run(make, facts, argv=how.argv)
