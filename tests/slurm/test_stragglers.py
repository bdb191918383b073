"""A node that starts late is waited for as long as the job says, and named when it does not come."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from harness import Run, submit

pytestmark = pytest.mark.slurm


@pytest.fixture
def clean(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, with no job left before and after."""
    cluster.cancel_all()
    yield cluster
    cluster.cancel_all()


def start(cluster: Cluster, folder: Path, gate: Path, init_timeout_min: float) -> Run:
    """Two ranks on two hosts, of which node2 does not start before ``gate`` is there."""
    hold = f'if [ "$(hostname)" = node2 ]; then while [ ! -e {shlex.quote(str(gate))} ]; do sleep 0.2; done; fi'
    return submit(
        folder,
        cluster.env,
        2,
        params={"epochs": 2, "step_s": 0.0},
        resources={"nodes": 2, "tasks_per_node": 1},
        slurm={"nodelist": "node1,node2"},
        environment={"setup": [hold]},
        distributed={"init_timeout_min": init_timeout_min},
    )


def status(cluster: Cluster, run: Run, folder: Path) -> str:
    """What ``launcher status`` says of the run."""
    env = {"LAUNCHER_RUNS_DIR": str(folder / "runs"), "XDG_STATE_HOME": str(folder / "state")}
    return cluster.run([sys.executable, "-m", "launcher", "status", run.paths.id], env=env).stdout


def missing(run: Run) -> list[str]:
    """The hosts that are waited for, as the leader's picture has it."""
    return [one["host"] for one in run.state().get("missing", [])]


def test_a_late_node_is_waited_for_and_named_meanwhile(clean: Cluster, tmp_path: Path) -> None:
    """While node2 holds back, `status` says that it is missing; once it comes, the run trains on both and completes."""
    gate = tmp_path / "gate"
    run = start(clean, tmp_path, gate, 9)
    run.wait("node2 to be missed", lambda: missing(run) == ["node2"])

    # Named as trouble once a node that is well would have joined; the gate is closed all the while.
    run.wait("status to name node2", lambda: "waits for node2" in status(clean, run, tmp_path))

    gate.touch()
    outcome = run.wait_end()
    assert outcome["state"] == "completed", outcome
    assert {r["host"] for r in run.told("round_started")[0]["ranks"]} == {"node1", "node2"}
    assert len(run.told("round_started")) == 1
    run.wait_no_process()


def test_a_node_that_never_comes_ends_the_run_with_its_name(clean: Cluster, tmp_path: Path) -> None:
    """Past the limit the run ends failed, naming the missing node and its ranks; what hangs in setup there ends with it."""
    run = start(clean, tmp_path, tmp_path / "never", 0.3)

    outcome = run.wait_end()

    assert outcome["state"] == "failed", outcome
    assert "node2" in outcome["reason"], json.dumps(outcome)
    assert "(rank 1)" in outcome["reason"], json.dumps(outcome)
    assert "\n" not in outcome["reason"]
    clean.wait_job(run.job_id, "FAILED", "CANCELLED", "COMPLETED", limit_s=120)
    run.wait_no_process()
