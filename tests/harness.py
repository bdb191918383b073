"""What every fault test needs: a run on the cluster, its history, its processes, and the digest of its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.run.files import read_lines
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome, read_state
from launcher.training.checkpoint.checkpoint_digest import digest_checkpoint

JOB = Path(__file__).parent / "faults" / "job"

PATIENCE_S = 600.0
"""Longest wait for anything: far beyond what a sound run needs, so that only a broken one exceeds it."""

SHAPES = {1: (1, 1), 2: (2, 1), 3: (3, 1), 4: (2, 2), 5: (1, 5), 8: (2, 4)}
"""World size: nodes and tasks per node."""

ONE_HOST = {"nodes": 1, "tasks_per_node": 3}
"""Three ranks where nothing depends on where they are: each host imports torch, the suite's greatest cost."""


def seldom(names: Iterable[str], *long: str) -> list[Any]:
    """Parameters of which some belong to `make faults` alone: the suite's time is limited."""
    return [pytest.param(name, marks=pytest.mark.long) if name in long else name for name in names]


class Run:
    """One run, seen from outside through its files."""

    def __init__(self, root: Path) -> None:
        self.paths = RunPaths(root)

    def history(self) -> list[dict[str, Any]]:
        """Every event so far."""
        return read_lines(self.paths.events)

    def told(self, type_: str, **values: Any) -> list[dict[str, Any]]:
        """The events of one type that have these values."""
        return [
            e
            for e in self.history()
            if e["type"] == type_ and all(e.get(key) == wanted for key, wanted in values.items())
        ]

    @property
    def job_id(self) -> str:
        """SLURM's job id."""
        return str(json.loads(self.paths.submission.read_text())["job_id"])

    def state(self) -> dict[str, Any]:
        """The leader's latest picture."""
        return read_state(self.paths.state)

    def outcome(self) -> dict[str, Any] | None:
        """How it ended, if it has."""
        return read_outcome(self.paths.outcome)

    def wait(
        self, what: str, condition: Callable[[], Any], limit_s: float = PATIENCE_S, *, every_s: float = 0.05
    ) -> Any:
        """Wait until ``condition`` holds; the failure shows the end of the history."""
        deadline = time.monotonic() + limit_s
        while not (value := condition()):
            if time.monotonic() > deadline:
                tail = "\n".join(json.dumps(e) for e in self.history()[-25:])
                raise AssertionError(f"{what}: not within {limit_s:.0f} s\n{tail}\n{self.agent_logs()}")
            time.sleep(every_s)
        return value

    def agent_logs(self) -> str:
        """The last lines of what agents and the batch script printed."""
        found = sorted(self.paths.submitit.glob("*log*")) if self.paths.submitit.exists() else []
        return "\n".join(f"--- {p.name}\n" + "\n".join(p.read_text(errors="replace").splitlines()[-15:]) for p in found)

    def wait_step(self, step: int) -> None:
        """Wait until some rank has done ``step``."""
        self.wait(f"step {step}", lambda: (self.state().get("step") or 0) >= step or self.outcome())
        assert self.outcome() is None, f"ended before step {step}: {self.outcome()}"

    def wait_round(self, number: int) -> None:
        """Wait until round ``number`` trains and the leader's picture shows it."""

        def there() -> bool:
            state = self.state()
            return state.get("round") == number and state.get("phase") == "training"

        self.wait(f"round {number}", lambda: there() or self.outcome())
        assert self.outcome() is None, f"ended before round {number}: {self.outcome()}"

    def wait_saved(self, count: int = 1) -> list[dict[str, Any]]:
        """Wait for that many commits; returns them."""
        return self.wait(f"{count} checkpoints", lambda: (s := self.told("saved")) and len(s) >= count and s)

    def wait_end(self) -> dict[str, Any]:
        """Wait for the outcome."""
        return self.wait("the end", self.outcome)

    def hurry(self) -> None:
        """Every fault has struck: steps take no time any more. Until then they may take so long that the run outlasts a slow test."""
        (self.paths.root / "hurry").touch()

    def rank(self, rank: int) -> dict[str, Any]:
        """A rank's row of the picture, with its pid: of the newest round, which the picture shows a second late."""

        def row() -> Any:
            state, newest = self.state(), self.told("round_started")[-1:]
            if any((e["attempt"], e["round"]) != (state.get("attempt"), state.get("round")) for e in newest):
                return None
            return next((r for r in state.get("ranks", []) if r.get("rank") == rank and r.get("pid")), None)

        return self.wait(f"rank {rank}", row)

    def processes(self) -> list[psutil.Process]:
        """Every process of this run: the run's directory is in its arguments or environment."""
        mark = str(self.paths.root)
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                if any(mark in word for word in process.cmdline()) or process.environ().get("LAUNCHER_RUN_DIR") == mark:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
                continue
        return found

    def wait_no_process(self) -> None:
        """Wait until nothing of the run is left."""
        # Each look reads every process: 12 ms of a core.
        self.wait("no process left", lambda: not self.processes(), 90, every_s=0.3)


def job_text(world: int, **job: Any) -> str:
    """The job file of a fault test, as JSON (which is YAML)."""
    nodes, tasks = SHAPES[world]
    base: dict[str, Any] = {
        "name": "steady",
        "task": "steady:Steady",
        "code": {"dir": str(JOB)},
        "params": {},
        "resources": {"nodes": nodes, "tasks_per_node": tasks, "timeout_min": 30},
        "distributed": {"init_timeout_min": 3},
        "checkpoint": {"interval_steps": 10},
        # Two ranks that stand still for 3 s, one after the other, are no hang.
        "restart": {"hang_floor_s": 20.0, "max_restarts": 5},
        "preflight": False,
    }
    for key, value in job.items():
        base[key] = {**base[key], **value} if isinstance(base.get(key), dict) else value
    return json.dumps(base)


def submit(directory: Path, environment: dict[str, str], world: int, /, *, backend: str = "slurm", **job: Any) -> Run:
    """Submit a job of ``world`` ranks; ``job`` is laid over the defaults section by section."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "job.yaml").write_text(job_text(world, **job))
    env = {**os.environ, **environment, "LAUNCHER_RUNS_DIR": str(directory / "runs")}
    env["XDG_STATE_HOME"] = str(directory / "state")
    done = subprocess.run(
        [sys.executable, "-m", "launcher", "submit", str(directory / "job.yaml"), "--backend", backend],
        env=env,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (root,) = (p for p in (directory / "runs").iterdir() if p.is_dir() and not p.name.startswith("."))
    return Run(root)


def until_there(file: Path) -> str:
    """A line of setup that waits for a file: agents start when a test has prepared the run's folder, however late that is."""
    return f"until [ -e {file} ]; do sleep 0.1; done"


def digest(run: Run) -> str:
    """sha256 over model, optimizer, scheduler, every rank's RNG and the sample order, from the newest checkpoint."""
    return digest_checkpoint(max(run.paths.checkpoints.glob("step-*")))["all"]


def ends_the_same(run: Run, world: int, undisturbed: Callable[[int], str]) -> None:
    """Completed, equal to the undisturbed run, and no process left."""
    outcome = run.wait_end()
    assert outcome["state"] == "completed", (outcome, run.history()[-10:])
    assert digest(run) == undisturbed(world)
    run.wait_no_process()


def nothing_lost(run: Run, attempt: int = 0) -> None:
    """The attempt's stop was agreed upon and saved, and the next attempt went on from that very step."""
    (agreed,), (stopped,) = run.told("agreed", attempt=attempt), run.told("stopped", attempt=attempt)
    assert (stopped["lost_steps"], stopped["step"]) == (0, agreed["step"])
    assert run.told("saved", attempt=attempt)[-1]["step"] == agreed["step"]
    assert run.told("round_started", attempt=attempt + 1)[0]["resume_step"] == agreed["step"]


def stays_cancelled(cluster: Any, run: Run) -> None:
    """Cancelled with nothing lost, out of SLURM's queue."""
    outcome = run.wait_end()
    assert outcome["state"] == "cancelled", outcome
    (stopped,) = run.told("stopped")
    assert stopped["lost_steps"] == 0
    cluster.wait(lambda: run.paths.id not in cluster.run(["squeue", "-h", "-o", "%j"]).stdout, "the job's end")
    run.wait_no_process()
    assert len(run.told("attempt_started")) == 1


def verb(cluster: Any, run: Run, name: str, *options: str) -> str:
    """A verb on the run; returns what it prints."""
    command = [sys.executable, "-m", "launcher", name, run.paths.id, *options]
    return str(cluster.run(command, env={"LAUNCHER_RUNS_DIR": str(run.paths.root.parent)}).stdout)


def cancel_and_save(cluster: Any, run: Run) -> None:
    """`launcher cancel --save`."""
    verb(cluster, run, "cancel", "--save")


NEW_ATTEMPT = (
    ("attempt_ended", {"attempt": 0}),
    ("requeued", {}),
    ("attempt_started", {"attempt": 1}),
    ("round_started", {"attempt": 1}),
    ("ended", {"state": "completed"}),
)
"""What the history tells of a run that came back once in a new allocation."""


def new_round(evidence: str) -> tuple[tuple[str, dict[str, Any]], ...]:
    """What the history tells of a run that started again in place."""
    return (
        ("round_ended", {"round": 0}),
        ("decision", {"evidence": evidence, "action": "new_round"}),
        ("round_started", {"attempt": 0, "round": 1}),
        ("first_step", {"round": 1}),
        ("ended", {"state": "completed"}),
    )


def tells(run: Run, *story: tuple[str, dict[str, Any]]) -> None:
    """The history holds these events, with these values, in this order (others may lie between them)."""
    history = run.history()
    at = 0
    for type_, values in story:
        found = (i for i in range(at, len(history)) if history[i]["type"] == type_ and _has(history[i], values))
        place = next(found, None)
        shown = "\n".join(json.dumps({k: v for k, v in e.items() if k not in ("facts", "ranks")}) for e in history)
        assert place is not None, f"{type_} {values} is not told, or not in its place:\n{shown}"
        at = place + 1


def _has(event: dict[str, Any], values: dict[str, Any]) -> bool:
    """Nested values by part: ``cause={"kind": "signal"}``."""
    return all(
        _has(event.get(key) or {}, wanted) if isinstance(wanted, dict) else event.get(key) == wanted
        for key, wanted in values.items()
    )


def start(cluster: Any, tmp_path: Path, world: int = 3, **job: object) -> Run:
    """A run that has one checkpoint and goes on."""
    run = submit(tmp_path, cluster.env, world, **job)
    run.wait_saved(1)
    run.wait_step(13)
    return run


def struck_by(cluster: Any, tmp_path: Path, strikes: Iterable[Callable[[Run], object]], **job: object) -> Run:
    """A run over three hosts that has ended, and has suffered all of these, one a round, each after the round's first checkpoint."""
    cluster.cancel_all()
    run = start(cluster, tmp_path, checkpoint={"interval_steps": 5}, **job)
    for number, strike in enumerate(strikes):
        run.wait_round(number)
        run.wait("a checkpoint of the round", lambda number=number: run.told("saved", round=number))
        strike(run)
    run.wait_end()
    return run


def in_evaluation(cluster: Any, folder: Path, seconds: int) -> Run:
    """A run all of whose ranks are in an evaluation that takes so long.

    It is slow from the beginning: were it made slow under way, a quick rank might already have passed the boundary after it.
    """
    go = folder / "go"
    run = submit(folder, cluster.env, 3, params={"evaluates": True}, environment={"setup": [until_there(go)]})
    (run.paths.root / "slow-evaluation").write_text(str(seconds))
    go.touch()
    run.wait("an evaluation", lambda: {r.get("phase") for r in run.state().get("ranks", [])} == {"evaluate"})
    return run
