"""Sites with `SlurmctldParameters=enable_stepmgr` (24.05): a slurmd of the job, not slurmctld, starts the steps and keeps account of them."""

from __future__ import annotations

from pathlib import Path

import inflict
import pytest
from cluster import Cluster
from harness import nothing_lost, start

pytestmark = pytest.mark.long


@pytest.fixture
def stepmgr(cluster: Cluster) -> Cluster:
    """The cluster, run in that way."""
    if cluster.version < (24, 5):
        pytest.skip("SLURM before 24.05 has no stepmgr")
    cluster.cancel_all()
    cluster.set(SlurmctldParameters="enable_stepmgr", PrologFlags="Contain", GraceTime=20)
    return cluster


def test_a_preempted_run_comes_back(stepmgr: Cluster, tmp_path: Path) -> None:
    """The step hears the preemption, the run saves and comes back with no step lost."""
    run = start(stepmgr, tmp_path, 2)
    shown = stepmgr.run(["scontrol", "show", "job", run.job_id]).stdout
    inflict.preempt(stepmgr, run.state()["nodes"])
    outcome = run.wait_end()

    assert "StepMgrEnabled=Yes" in shown, shown
    assert outcome["state"] == "completed", outcome
    nothing_lost(run)


@pytest.mark.parametrize("rank", [0, 1], ids=["the leader's host", "another host"])
def test_an_agent_that_is_killed_ends_no_run(stepmgr: Cluster, tmp_path: Path, rank: int) -> None:
    """kill -9 of an agent: the batch script or the leader sees to it."""
    run = start(stepmgr, tmp_path, 2)
    inflict.kill_agent(run, rank)
    outcome = run.wait_end()

    assert outcome["state"] == "completed", outcome


@pytest.mark.parametrize("which", [0, 1], ids=["the first host", "another host"])
def test_a_host_that_dies_ends_no_run(stepmgr: Cluster, tmp_path: Path, which: int) -> None:
    """With the first host the job's stepmgr is gone, too."""
    stepmgr.set(SlurmdTimeout=20)
    run = start(stepmgr, tmp_path, 2)
    stepmgr.kill(run.state()["nodes"][which])
    outcome = run.wait_end()

    assert outcome["state"] == "completed", outcome


def test_a_cancelled_run_stays_cancelled(stepmgr: Cluster, tmp_path: Path) -> None:
    """Scancel is told from a preemption."""
    run = start(stepmgr, tmp_path, 2)
    stepmgr.run(["scancel", run.job_id])
    outcome = run.wait_end()

    assert outcome["state"] == "cancelled", outcome
