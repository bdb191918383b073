"""Ends of runs on the real cluster whose sentences are told word by word; tests/slurm/test_planted.py has the many."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import inflict
import pytest
from cluster import Cluster
from harness import Run, submit

from launcher.report.diagnosis.why import Why, explain
from launcher.report.model.history import History, read_history
from launcher.report.model.summary import summarise_history

CODE = Path(__file__).parent / "planted"
ONE_NODE = {"nodes": 1, "tasks_per_node": 2}


@pytest.fixture(scope="module", autouse=True)
def patient(cluster: Cluster) -> Iterator[None]:
    """A cancelled leader has a minute for its last words, also on a busy machine."""
    cluster.set(KillWait=60)
    yield
    cluster.restore({})


def plant(cluster: Cluster, directory: Path, **job: Any) -> Run:
    """Submit a job of two ranks on two hosts that fails as told."""
    base: dict[str, Any] = {
        "name": "planted", "task": None, "code": {"dir": str(CODE)}, "checkpoint": {"enabled": False, "interval_steps": None},
        "restart": {"hang_floor_s": 60.0, "max_restarts": 1000, "requeue": False}, "resources": {"nodes": 2, "tasks_per_node": 1},
    }  # fmt: skip
    if "script" not in job:
        base["function"] = "loop_function:train"
    for key, value in job.items():
        base[key] = {**base[key], **value} if isinstance(base.get(key), dict) else value
    return submit(directory, cluster.env, 2, **base)


def told(history: History, cluster: Cluster | None = None) -> Why:
    """What ``launcher why`` says."""
    now = max(float(history.events[-1].t), float(history.state.get("t", 0))) + 1
    return explain(history, summarise_history(history, None, now), now)


def ended(run: Run) -> Why:
    """What ``launcher why`` says of a run that has ended."""
    run.wait_end()
    return told(read_history(run.paths))


def steady(cluster: Cluster, directory: Path, **job: Any) -> Run:
    """A run that trains until something happens to it from outside."""
    run = plant(cluster, directory, params={"names": ["steady"]}, **job)
    run.wait_step(2)
    return run


def test_a_collective_that_a_rank_misses(cluster: Cluster, tmp_path: Path) -> None:
    """With hang detection off, the collective's own time-out ends it, and the rank that did not come is named."""
    names = ["function: own rank that misses a collective"]
    run = plant(cluster, tmp_path, params={"names": names}, distributed={"collective_timeout_min": 0.1},
                restart={"max_restarts": 0, "hang_detection": False})  # fmt: skip
    why = ended(run)

    host = run.told("round_started")[0]["ranks"][1]["host"]
    assert why.kind == "timeout"
    assert why.sentence.startswith(
        f"Rank 1 ({host}) did not take part in a collective; rank 0 gave up waiting after 6.0 s"
    )


def test_scancel_and_launcher_cancel_are_told_apart(cluster: Cluster, tmp_path: Path) -> None:
    """Who ended the run: SLURM's command or this one."""
    by_slurm, by_launcher = (steady(cluster, tmp_path / name, resources=ONE_NODE) for name in "ab")
    job_id = json.loads(by_slurm.paths.submission.read_text())["job_id"]
    cluster.run(["scancel", job_id])
    environment = {**os.environ, **cluster.env, "LAUNCHER_RUNS_DIR": str(by_launcher.paths.root.parent)}
    command = [sys.executable, "-m", "launcher", "cancel", by_launcher.paths.id, "--save"]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
    first, second = ended(by_slurm), ended(by_launcher)

    assert (first.kind, first.sentence) == (
        "cancelled",
        f"The job {job_id} was cancelled (scancel, by its owner or an administrator).",
    )
    assert (second.kind, second.sentence) == ("user", "The run was cancelled with `launcher cancel`.")


def test_a_dead_host_is_named(cluster: Cluster, tmp_path: Path) -> None:
    """Every process of the second host dies; the run may not come back."""
    run = steady(cluster, tmp_path, restart={"max_restarts": 0})
    cluster.kill(run.state()["nodes"][1])
    why = ended(run)

    assert why.kind == "node"
    assert why.sentence.startswith(f"Node {run.state()['nodes'][1]} ")


@pytest.mark.long
def test_a_preempted_run_that_may_not_come_back(cluster: Cluster, tmp_path: Path) -> None:
    """restart.requeue is off: preemption ends the run, and that is what is said."""
    cluster.cancel_all()
    run = steady(cluster, tmp_path, resources=ONE_NODE)
    cluster.sbatch("-p", "high", "-N4", "--exclusive", wrap="true")
    why = ended(run)

    assert why.kind == "preempted"
    assert why.sentence.startswith("SLURM preempted the run")


def test_a_leader_that_dies_silently_is_found_out(cluster: Cluster, tmp_path: Path) -> None:
    """kill -9 of the leader of a run that may not come back, keeper included: the verb itself asks SLURM and says so."""
    run = steady(cluster, tmp_path, resources=ONE_NODE)
    inflict.lose_keeper(run)
    for process in run.processes():
        if process.pid == run.state()["leader_pid"]:
            process.send_signal(signal.SIGKILL)
    job_id = json.loads(run.paths.submission.read_text())["job_id"]
    cluster.wait(
        lambda: cluster.job(job_id).get("JobState") not in ("RUNNING", "COMPLETING", "PENDING"), "the job's end", 240
    )
    deadline = time.monotonic() + 240
    while "kind" not in (said := why_verb(cluster, run)) or said["kind"] == "running":
        assert time.monotonic() < deadline, said
        time.sleep(2)

    assert said["state"] == "failed"
    assert said["kind"] == "leader", said


def why_verb(cluster: Cluster, run: Run) -> dict[str, Any]:
    """What ``launcher why RUN --json`` prints."""
    environment = {**os.environ, **cluster.env, "LAUNCHER_RUNS_DIR": str(run.paths.root.parent)}
    command = [sys.executable, "-m", "launcher", "why", run.paths.id, "--json"]
    out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=120).stdout
    value: dict[str, Any] = json.loads(out)
    return value
