"""Rehearse a job, and drill a resume: ``launcher dry-run``.

On this machine an agent simulates each node; with ``--slurm`` nodes are real. Workers are real in both. The job runs a few
steps undisturbed, then once more with a rank killed at a random step after a checkpoint. The two final states are compared.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from launcher.config.load.load import LoadedJob
from launcher.errors import DrillError, LauncherError, RunFailedError
from launcher.frozen import frozen
from launcher.run import event_lines, events
from launcher.run.files import read_lines
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome, read_state
from launcher.run.worker_texts import NOT_REGISTERED, UNORDERED, UNREAD, UNRESTORED, UNSAVED
from launcher.slurm.environ import environment_for_sbatch
from launcher.submission import submit
from launcher.submission.backends.slurm import python_path
from launcher.submission.facts.facts import Facts
from launcher.submission.plan.describe import saves_itself
from launcher.submission.plan.plan import plan
from launcher.submission.plan.submission_plan import SubmissionPlan
from launcher.submission.rehearsal.stages import Agents, Stage

PLAIN_S = 60.0
"""A script that reports no steps is stopped after so long."""
_LIMIT_S = 3600.0
_COMPARE_S = 600.0
_LEAVE_S = 30.0
"""Agents that still run so long after the outcome was written are killed."""


@frozen
class RehearsedRun:
    """What one run of the rehearsal measured."""

    run_dir: str
    steps: int
    step_time_s: float | None
    """Median over the steps after the first."""
    rank_bytes: int | None
    """Most memory of one rank: the GPU's where there are GPUs, else resident."""
    save_s: float | None
    save_blocked_s: float | None
    checkpoint_bytes: int | None
    total_steps: int | None
    warnings: tuple[str, ...]
    """The warnings in its history."""
    ended: bool
    """It ended by itself."""
    digests: dict[str, str] = field(default_factory=dict)
    """Digest of each part of the state at the end, from the last checkpoint; for the drill alone."""
    ranks: int = 1
    hosts: tuple[str, ...] = ()
    bandwidth_gb_s: float | None = None
    """Of the checks' all-reduce; None where there was none."""


@frozen
class Rehearsal:
    """The result of a rehearsal."""

    first: RehearsedRun
    second: RehearsedRun | None
    """After the drill; None where there was none."""
    killed: tuple[int, int] | None
    """Rank and step."""
    resumed_from: int | None
    differs: tuple[str, ...] = ()
    """Parts of the state that differ."""
    notes: tuple[str, ...] = ()
    undrilled: str = ""
    """Why no resume was drilled; empty where one was, and for a script that resumes itself."""

    @property
    def projected_s(self) -> float | None:
        """Training time of the whole job at this machine's speed."""
        steps, seconds = self.first.total_steps, self.first.step_time_s
        return None if steps is None or seconds is None else steps * seconds


def rehearse(
    loaded: LoadedJob,
    stage: Stage,
    *,
    steps: int,
    seed: int | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Rehearsal:
    """Rehearse ``loaded`` for ``steps`` optimizer steps, then drill a resume.

    Raises RunFailedError when the job itself fails, with its reason; other errors of planning as `plan` does.
    """
    loaded, notes = _quiet(loaded, stage)
    base = plan(loaded, stage.facts)
    for warning in base.warnings:
        tell(f"  warning  {warning}")
    tell(f"rehearsing {steps} steps without a failure")
    first = _run(base, stage, loaded, {"stop_after_steps": steps})
    if first.steps:  # what its text does not show (importlib, an entry point)
        base = replace(base, code=replace(base.code, attaches=True))
    if why := _no_drill(base, first):
        itself = bool(saves_itself(base.spec, base.code))
        notes += [f"no drill: {why}"] if itself else []
        return Rehearsal(first, None, None, None, notes=tuple(notes), undrilled="" if itself else why)
    chance = random.Random(seed)  # noqa: S311 (which rank is killed, no secret)
    saved = chance.randint(1, first.steps - 2)
    killed = (chance.randrange(base.spec.world_size), chance.randint(saved + 1, first.steps - 1))
    tell(f"rehearsing again: rank {killed[0]} is killed at step {killed[1]}, after the checkpoint of step {saved}")
    checkpoint = replace(base.spec.checkpoint, interval_steps=saved, interval_min=None, enabled=True)
    restart = replace(base.spec.restart, max_restarts=max(1, base.spec.restart.max_restarts))  # the kill is the drill's
    changes = {"stop_after_steps": steps, "kill_at": list(killed), "checkpoint": checkpoint, "restart": restart}
    second = _run(base, stage, loaded, changes)
    rounds = _rounds(RunPaths(Path(second.run_dir)))
    resumed = next((e.resume_step for e in rounds if e.resume_step), None)
    first, second = _digested([first, second], base.interpreter.path)
    names = sorted(set(first.digests) | set(second.digests))
    differs = tuple(n for n in names if first.digests.get(n) != second.digests.get(n))
    return Rehearsal(first, second, killed, resumed, differs, tuple(notes))


def check_drill(rehearsal: Rehearsal) -> None:
    """Raise DrillError with the parts of the state that differ, or why no resume was drilled."""
    if rehearsal.undrilled:
        raise DrillError(f"the resume was not tested: {rehearsal.undrilled}")
    if rehearsal.second is None:
        return
    if not rehearsal.first.digests:
        raise DrillError("the drill has no result: the job left no checkpoint; set checkpoint.enabled=true")
    if rehearsal.resumed_from is None:
        raise DrillError("the drill has no result: no checkpoint was committed before the rank was killed")
    if rehearsal.differs:
        parts = ", ".join(part for part in rehearsal.differs if part != "all")
        raise DrillError(
            f"the job does not resume exactly: resumed from step {rehearsal.resumed_from}, it ends with another "
            f"{parts} than the run without a failure; {_likely(rehearsal)}"
        )


def _likely(rehearsal: Rehearsal) -> str:
    """Return the likely reason, from what the workers reported."""
    said = [w for run in (rehearsal.first, rehearsal.second) if run for w in run.warnings]
    for warning in said:
        if warning.startswith((NOT_REGISTERED, UNORDERED)):
            return warning
    if UNREAD in said:
        return UNREAD
    if UNRESTORED in said:
        return UNRESTORED
    if "rng" in rehearsal.differs:  # other parts then differ because of it
        return (
            "the resumed run draws other random numbers: look for iter(loader) inside the loop, and for a batch that is "
            "fetched before the loop (docs/scripts.md)"
        )
    return (
        "something they depend on is not saved: an attribute, a counter, a sampler of your own, a batch fetched ahead "
        "(worker.register, Training.state; docs/scripts.md), or results vary from run to run (deterministic: true)"
    )


def _quiet(loaded: LoadedJob, stage: Stage) -> tuple[LoadedJob, list[str]]:
    """Return the job in the shape that the stage has room for, without trackers, notifications and further jobs; and notes on the shape."""
    job = loaded.job
    resources, notes = stage.fit(job.resources)
    gloo = not resources.gpus_per_node and job.distributed.backend == "nccl"
    quiet = replace(
        job,
        resources=resources,
        distributed=replace(job.distributed, backend="gloo") if gloo else job.distributed,
        sweep={},
        after=None,
        trackers=replace(job.trackers, tensorboard=False, mlflow=None, wandb=None),
        notify=replace(job.notify, urls=[]),
        restart=replace(job.restart, requeue=False, queue_early=False),
    )
    return replace(loaded, job=quiet), notes


def _no_drill(base: SubmissionPlan, first: RehearsedRun) -> str:
    """Return why a resume cannot be drilled; empty when it can."""
    if said := saves_itself(base.spec, base.code):
        end = "it ran to its end" if first.ended else f"it was ended after {PLAIN_S:.0f} s, still running"
        return f"{said}; {end}"
    if not base.spec.checkpoint.enabled:
        return "the job saves nothing and cannot resume (checkpoint.enabled: false)"
    if first.steps < 3:
        return "a drill needs three steps, and the job ended before them"
    saved = any(RunPaths(Path(first.run_dir)).checkpoints.glob("step-*"))
    return "" if saved else UNSAVED


def _run(base: SubmissionPlan, stage: Stage, loaded: LoadedJob, changes: Mapping[str, Any]) -> RehearsedRun:
    def again(facts: Facts) -> SubmissionPlan:
        made = plan(loaded, facts)
        return replace(made, spec=replace(made.spec, **changes))

    submitted = submit.submit_run(again, stage.facts, argv=["dry-run"], job_id=stage.job_id, listed=stage.kept)
    agents = stage.agents(submitted.plan)
    try:
        agents.start()
        _await_end(submitted.paths, agents, PLAIN_S if saves_itself(base.spec, base.code) else None)
    finally:
        agents.kill()
    return _measure(submitted.paths, submitted.plan)


def _await_end(paths: RunPaths, agents: Agents, watch_s: float | None) -> None:
    """Wait until the run has ended, or was watched for ``watch_s``. Raises LauncherError, RunFailedError."""
    deadline, runs = time.monotonic() + _LIMIT_S, False
    while agents.alive() and time.monotonic() < deadline:
        if read_outcome(paths.outcome) is not None:
            deadline = min(deadline, time.monotonic() + _LEAVE_S)
        elif watch_s is not None and not runs and _rounds(paths):
            deadline, runs = min(deadline, time.monotonic() + watch_s), True
        time.sleep(0.05)
    outcome = read_outcome(paths.outcome)
    if outcome is None and not agents.alive():
        why = f": {said}" if (said := agents.said()) else ""
        raise RunFailedError(f"the rehearsal's agents ended without an outcome{why} (logs: {paths.submitit})")
    if outcome is None and not runs:
        raise LauncherError(f"the rehearsal did not end within {_LIMIT_S:.0f} s (logs: {paths.logs})")
    if outcome is not None and outcome["state"] != "completed":
        raise RunFailedError(f"the rehearsal failed: {outcome['reason']} (logs: {paths.logs})")


def _rounds(paths: RunPaths) -> list[events.RoundStarted]:
    return [e for e in event_lines.read(paths.events) if isinstance(e, events.RoundStarted)]


def _measure(paths: RunPaths, made: SubmissionPlan) -> RehearsedRun:
    history = event_lines.read(paths.events)
    saved = [e for e in history if isinstance(e, events.Saved)]
    checked = (e.bandwidth_gb_s for e in history if isinstance(e, events.PreflightDone))
    state = read_state(paths.state)
    ranks = [r for line in read_lines(paths.samples) for r in line.get("ranks", [])] + list(state.get("ranks", []))
    times = [r["step_time_s"] for r in ranks if r.get("step_time_s")]
    key = "gpu_mem_bytes" if made.spec.gpus_per_node else "rss_bytes"
    memory = [r[key] for r in ranks if r.get(key)]
    outcome = read_outcome(paths.outcome)
    return RehearsedRun(
        ended=outcome is not None,
        run_dir=str(paths.root),
        steps=int((outcome or {}).get("step") or 0),
        step_time_s=statistics.median(times) if times else None,
        rank_bytes=max(memory, default=None),
        save_s=max((e.seconds for e in saved if e.seconds is not None), default=None),
        save_blocked_s=max((e.blocked_s for e in saved if e.blocked_s is not None), default=None),
        checkpoint_bytes=max((e.bytes for e in saved if e.bytes is not None), default=None),
        total_steps=state.get("total_steps"),
        warnings=tuple(dict.fromkeys(e.text or "" for e in history if isinstance(e, events.Warned))),
        ranks=made.spec.world_size,
        hosts=tuple(state.get("nodes") or ()),
        bandwidth_gb_s=next(checked, None),
    )


def _digested(runs: list[RehearsedRun], python: str) -> list[RehearsedRun]:
    """Add the digest of each part of the newest checkpoints, by the job's own interpreter, which has torch."""
    roots = [RunPaths(Path(run.run_dir)) for run in runs]
    newest = [max(paths.checkpoints.glob("step-*"), default=None) for paths in roots]
    there = [str(path) for path in newest if path is not None]
    if not there:
        return runs
    # As agents have it: a Python may need LD_LIBRARY_PATH, and torch may be found by PYTHONPATH.
    env = {**environment_for_sbatch(os.environ, {}), "PYTHONPATH": python_path(str(roots[0].lib))}
    try:
        done = subprocess.run(
            [python, "-m", "launcher.training.checkpoint.checkpoint_digest", *there], cwd=str(roots[0].root), env=env,
            capture_output=True, text=True, errors="replace", check=False, timeout=_COMPARE_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LauncherError(f"the two states could not be compared: {error}") from None
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise LauncherError(f"the two states could not be compared: {why} (checkpoints: {', '.join(there)})")
    found = dict(zip(there, json.loads(done.stdout), strict=True))
    return [replace(run, digests=found.get(str(path), {})) for run, path in zip(runs, newest, strict=True)]
