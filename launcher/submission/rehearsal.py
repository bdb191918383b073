"""The rehearsal of a job on this machine, and the resume drill: ``launcher dry-run``.

Every node is simulated by an agent, workers are real. The job runs a few steps undisturbed; then once more, with a rank
killed at a random step behind a checkpoint, and the two ends are compared part by part.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher.config.load import LoadedJob
from launcher.errors import DrillError, LauncherError, RunFailedError
from launcher.run import events
from launcher.run.files import read_lines
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome, read_state
from launcher.submission import submit
from launcher.submission.facts import Facts
from launcher.submission.local_backend import Foreground
from launcher.submission.plan import SubmissionPlan, plan

__all__ = ["MOST_RANKS", "Rehearsal", "Take", "fit", "rehearse"]

MOST_RANKS = 8
"""More CPU workers than this on one machine measure the machine, not the job."""

END_S = 30.0
"""Agents that have not left by then, after the outcome was written, are killed."""


@dataclass(frozen=True)
class Take:
    """One rehearsed run."""

    run_dir: str
    steps: int
    step_time_s: float | None
    """Median over the steps behind the first."""
    rank_bytes: int | None
    """Most memory of one rank: the GPU's where there are GPUs, else resident."""
    save_s: float | None
    save_blocked_s: float | None
    checkpoint_bytes: int | None
    total_steps: int | None
    digests: dict[str, str]
    """Digest of each part of the state at the end, from the last checkpoint."""


@dataclass(frozen=True)
class Rehearsal:
    """What came of it."""

    first: Take
    second: Take | None
    """After the drill; None where there was none."""
    killed: tuple[int, int] | None
    """Rank and step."""
    resumed_from: int | None
    differs: tuple[str, ...] = ()
    """Parts of the state that differ; empty is what a user hopes for."""
    notes: tuple[str, ...] = ()

    @property
    def projected_s(self) -> float | None:
        """Training time of the whole job at this machine's pace."""
        if self.first.total_steps is None or self.first.step_time_s is None:
            return None
        return self.first.total_steps * self.first.step_time_s


@dataclass
class _Shape:
    """How the job is made to fit this machine."""

    overrides: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def fit(nodes: int, tasks_per_node: int, gpus_per_node: int, gpus_here: int) -> tuple[int, int, int, list[str]]:
    """(nodes, tasks per node, GPUs per node, notes): what of a job's shape this machine can play."""
    notes = []
    gpus = gpus_per_node
    if gpus and gpus * nodes > gpus_here:
        has = f"{gpus_here} GPU{'s' if gpus_here != 1 else ''}" if gpus_here else "no GPU"
        notes.append(f"on CPUs with gloo: the job asks for {gpus * nodes} GPUs, this machine has {has}")
        gpus = 0
    if gpus == 0 and nodes * tasks_per_node > MOST_RANKS:
        world = nodes * tasks_per_node
        tasks_per_node = min(tasks_per_node, MOST_RANKS // 2)
        nodes = max(1, min(nodes, MOST_RANKS // tasks_per_node))
        notes.append(f"with {nodes * tasks_per_node} ranks on {nodes} simulated nodes instead of {world}")
    return nodes, tasks_per_node, gpus, notes


def rehearse(
    loaded: LoadedJob,
    facts: Facts,
    *,
    steps: int,
    seed: int | None = None,
    limit_s: float = 3600.0,
    tell: Callable[[str], None] = lambda _: None,
) -> Rehearsal:
    """Rehearse ``loaded`` for ``steps`` optimizer steps, then drill a resume.

    Raises RunFailedError when the job itself fails, with its reason; other errors of planning as `plan` does.
    """
    base, notes = _plan(loaded, facts)
    drill = _drillable(base)
    tell("rehearsing " + f"{steps} steps, undisturbed")
    first = _take(base, facts, loaded, {"stop_after_steps": steps}, limit_s)
    if not drill or first.steps < 3:
        why = "the script reports no steps to the launcher (launcher.attach): resuming is its own business"
        notes.append(f"no drill: {why if not drill else 'fewer than three steps were done'}")
        return Rehearsal(first, None, None, None, notes=tuple(notes))
    chance = random.Random(seed)
    saved = chance.randint(1, first.steps - 2)
    killed = (chance.randrange(base.spec.world_size), chance.randint(saved + 1, first.steps - 1))
    tell(f"once more, rank {killed[0]} killed at step {killed[1]}, behind the checkpoint of step {saved}")
    checkpoint = replace(base.spec.checkpoint, interval_steps=saved, interval_min=None, enabled=True)
    changes = {"stop_after_steps": steps, "kill_at": list(killed), "checkpoint": checkpoint}
    second = _take(base, facts, loaded, changes, limit_s)
    resumed = _resumed_from(second)
    names = sorted(set(first.digests) | set(second.digests))
    differs = tuple(n for n in names if first.digests.get(n) != second.digests.get(n))
    return Rehearsal(first, second, killed, resumed, differs, tuple(notes))


def verdict(rehearsal: Rehearsal) -> None:
    """Raises DrillError, naming the parts of the state that differ."""
    if rehearsal.second is None:
        return
    if not rehearsal.first.digests:
        raise DrillError("the drill could not be judged: the job left no checkpoint (checkpoint.enabled)")
    if rehearsal.resumed_from is None:
        raise DrillError("the drill could not be judged: no checkpoint was committed before the rank was killed")
    if rehearsal.differs:
        parts = ", ".join(rehearsal.differs)
        raise DrillError(
            f"the job does not resume exactly: after a resume from step {rehearsal.resumed_from} these parts of its "
            f"state differ from the undisturbed run's: {parts}"
        )


def _plan(loaded: LoadedJob, facts: Facts) -> tuple[SubmissionPlan, list[str]]:
    job = loaded.job
    res = job.resources
    tasks = res.tasks_per_node or res.gpus_per_node or 1
    nodes, tasks, gpus, notes = fit(res.nodes, tasks, res.gpus_per_node, facts.gpus_here)
    shaped = replace(res, nodes=nodes, tasks_per_node=tasks, gpus_per_node=gpus, spare_nodes=0)
    distributed = job.distributed
    if not gpus and distributed.backend.value == "nccl":
        distributed = replace(distributed, backend=type(distributed.backend).gloo)
    quiet = replace(job, resources=shaped, distributed=distributed, sweep={}, after=None)
    quiet = replace(quiet, trackers=replace(job.trackers, tensorboard=False, mlflow=None, wandb=None))
    quiet = replace(quiet, notify=replace(job.notify, urls=[]))
    return plan(replace(loaded, job=quiet), replace(facts, backend="local")), notes


def _drillable(base: SubmissionPlan) -> bool:
    return base.spec.work.kind in ("task", "function") or base.code.attaches


def _take(base: SubmissionPlan, facts: Facts, loaded: LoadedJob, changes: Mapping[str, Any], limit_s: float) -> Take:
    def again(facts: Facts) -> SubmissionPlan:
        made, _ = _plan(loaded, facts)
        return replace(made, spec=replace(made.spec, **changes))

    submitted = submit.execute(again, facts, argv=["dry-run"], foreground=True)
    agents = Foreground(submitted.plan)
    try:
        agents.start()
        _await_end(submitted.paths, agents, limit_s)
    finally:
        agents.kill()
    return _measure(submitted.paths, submitted.plan)


def _await_end(paths: RunPaths, agents: Foreground, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while agents.alive() and time.monotonic() < deadline:
        if read_outcome(paths.outcome) is not None:
            deadline = min(deadline, time.monotonic() + END_S)
        time.sleep(0.05)
    outcome = read_outcome(paths.outcome)
    if outcome is None:
        raise LauncherError(f"the rehearsal did not end within {limit_s:.0f} s; its logs are in {paths.logs}")
    if outcome["state"] != "completed":
        raise RunFailedError(f"the rehearsal failed: {outcome['reason']} (logs: {paths.logs})")


def _measure(paths: RunPaths, made: SubmissionPlan) -> Take:
    history = events.read(paths.events)
    saved = [e for e in history if e["type"] == "saved"]
    state = read_state(paths.state)
    ranks = [r for line in read_lines(paths.samples) for r in line.get("ranks", [])] + list(state.get("ranks", []))
    times = [r["step_time_s"] for r in ranks if r.get("step_time_s")]
    key = "gpu_mem_bytes" if made.spec.gpus_per_node else "rss_bytes"
    memory = [r[key] for r in ranks if r.get(key)]
    outcome = read_outcome(paths.outcome) or {}
    return Take(
        run_dir=str(paths.root),
        steps=int(outcome.get("step") or 0),
        step_time_s=statistics.median(times) if times else None,
        rank_bytes=max(memory, default=None),
        save_s=max((e["seconds"] for e in saved), default=None),
        save_blocked_s=max((e["blocked_s"] for e in saved), default=None),
        checkpoint_bytes=max((e["bytes"] for e in saved), default=None),
        total_steps=state.get("total_steps"),
        digests=_digests(paths, made.interpreter.path),
    )


def _digests(paths: RunPaths, python: str) -> dict[str, str]:
    """Digest of each part of the newest checkpoint; computed by the job's own interpreter, which has torch."""
    newest = max(paths.checkpoints.glob("step-*"), default=None)
    if newest is None:
        return {}
    done = subprocess.run(
        [python, "-m", "launcher.training.digest", str(newest)],
        env={"PYTHONPATH": str(paths.lib), "PATH": "/usr/bin:/bin"},
        cwd=str(Path(paths.root)),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if done.returncode:
        raise LauncherError(f"{newest} cannot be read: {(done.stderr.strip().splitlines() or ['no answer'])[-1]}")
    parts: dict[str, str] = json.loads(done.stdout)
    return parts


def _resumed_from(take: Take) -> int | None:
    rounds = [e for e in events.read(RunPaths(Path(take.run_dir)).events) if e["type"] == "round_started"]
    return rounds[-1].get("resume_step") if len(rounds) > 1 else None
