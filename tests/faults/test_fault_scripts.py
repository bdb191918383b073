"""Attached scripts with loader workers on the real cluster: SLURM's own TERM and USR2 reach every process of the step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import inflict
import pytest
from cluster import Cluster
from harness import JOB, ONE_HOST, Run, cancel_and_save, nothing_lost, stays_cancelled, submit

Reference = Callable[[], str]
STEPS = "80"


def submitted(folder: Path, environment: dict[str, str], how: str, method: str, step_s: float, **job: Any) -> Run:
    """Three ranks of the script."""
    args = [how, method, STEPS, str(step_s), "${run.dir}/digest"]
    return submit(
        folder, environment, 3,
        **{"task": None, "script": "attached.py", "args": args, "params": {}, "code": {"dir": str(JOB)}, "resources": ONE_HOST, **job},
    )  # fmt: skip


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """The digest of an undisturbed run's weights."""
    known: list[str] = []

    def get() -> str:
        if not known:
            resources = {"nodes": 1, "tasks_per_node": 3, "cpus_per_task": 1}
            run = submitted(
                tmp_path_factory.mktemp("reference"), {}, "register", "fork", 0.0, backend="local", resources=resources
            )
            assert run.wait_end()["state"] == "completed"
            known.append((run.paths.root / "digest").read_text())
        return known[0]

    return get


def training(cluster: Cluster, folder: Path, how: str, method: str = "fork", **job: Any) -> Run:
    """The run, once it has a checkpoint and goes on."""
    run = submitted(folder, cluster.env, how, method, 0.2, **job)
    run.wait_saved(1)
    run.wait_step(13)
    return run


def completed(run: Run, reference: Reference) -> None:
    """Completed by itself with the undisturbed weights, without a failure, a warning or a round that did nothing."""
    outcome = run.wait_end()
    assert outcome["state"] == "completed", outcome
    assert (run.paths.root / "digest").read_text() == reference()
    assert not run.told("worker_failed")
    assert not run.told("warning")
    assert len(run.told("round_started")) == len(run.told("attempt_started")) == 2
    run.wait_no_process()


@pytest.mark.parametrize(
    ("how", "method", "grace_s"),
    [
        ("register", "spawn", 20),
        ("folder", "fork", 0),
        pytest.param("register", "fork", 20, marks=pytest.mark.long),
        pytest.param("register", "fork", 0, marks=pytest.mark.long),
        pytest.param("folder", "spawn", 20, marks=pytest.mark.long),
    ],
)
def test_preempted(clean: Cluster, tmp_path: Path, reference: Reference, how: str, method: str, grace_s: int) -> None:
    """Agreed, saved, 0 steps lost, with grace and without: neither the script nor its loader workers die of SLURM's TERM."""
    clean.set(GraceTime=grace_s)
    run = training(clean, tmp_path, how, method)

    inflict.preempt(clean, run.state()["nodes"])

    completed(run, reference)
    nothing_lost(run)


@pytest.mark.long
def test_loader_workers_from_before_attach(clean: Cluster, tmp_path: Path, reference: Reference) -> None:
    """SLURM's TERM ends them and with them their ranks: stopped, not failed; back at once from the last checkpoint, same end."""
    clean.set(GraceTime=20)
    run = training(clean, tmp_path, "register", "early")

    inflict.preempt(clean, run.state()["nodes"])

    outcome = run.wait_end()
    assert outcome["state"] == "completed", outcome
    assert (run.paths.root / "digest").read_text() == reference()
    assert not run.told("worker_failed")
    assert len(run.told("round_started")) == len(run.told("attempt_started")) == 2
    assert "was being stopped" in run.told("warning")[0]["text"]


@pytest.mark.long
@pytest.mark.parametrize("how", ["register", "folder"])
def test_the_time_limit(clean: Cluster, tmp_path: Path, reference: Reference, how: str) -> None:
    """USR2 announces it to every process: the same."""
    run = submitted(
        tmp_path, clean.env, how, "fork", 0.6, resources={**ONE_HOST, "timeout_min": 1}, restart={"signal_lead_s": 20},
        distributed={"init_timeout_min": 0.9},
    )  # fmt: skip

    outcome = run.wait_end()
    assert outcome["state"] == "completed", outcome
    assert (run.paths.root / "digest").read_text() == reference()
    assert {e["cause"] for e in run.told("stop_requested")} == {"time_limit"}
    assert not run.told("worker_failed")
    nothing_lost(run)


@pytest.mark.long
def test_scancel(clean: Cluster, tmp_path: Path) -> None:
    """Saved with nothing lost, and it never comes back."""
    run = training(clean, tmp_path, "register")

    clean.run(["scancel", run.job_id])

    stays_cancelled(clean, run)
    assert run.told("saved")[-1]["reason"] == "stop"


@pytest.mark.long
def test_preempted_while_saving_for_a_cancel(clean: Cluster, tmp_path: Path) -> None:
    """`launcher cancel --save`, and SLURM's TERM while the ranks go to the agreed step: saved, cancelled, nothing lost."""
    run = training(clean, tmp_path, "folder")
    cancel_and_save(clean, run)
    run.wait("the request", lambda: run.told("stop_requested"))

    inflict.preempt(clean, run.state()["nodes"])

    stays_cancelled(clean, run)
