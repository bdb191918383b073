"""Agents, hosts and SLURM's daemons die on the real cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import inflict
import pytest
from cluster import Cluster
from harness import NEW_ATTEMPT, ends_the_same, new_round, start, tells

from launcher.slurm.versions import blocks_accounting

Undisturbed = Callable[[int], str]


@pytest.mark.parametrize("node", [0, 2], ids=["leader", "agent"])
def test_a_killed_agent(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, node: int) -> None:
    """SIGKILL of the leader or of another agent, with nobody there to start it again: the run comes back and ends the same."""
    run = start(clean, tmp_path)

    host = run.state()["nodes"][node]

    inflict.lose_agent(run, node)

    ends_the_same(run, 3, undisturbed)
    if node == 0:
        tells(run, ("saved", {}), ("decision", {"evidence": "leader_gone", "action": "requeue"}), *NEW_ATTEMPT)
    else:
        lost = ("node_lost", {"host": host})
        tells(run, ("saved", {}), lost, ("decision", {"evidence": "node_lost", "action": "requeue"}), *NEW_ATTEMPT)
    assert len(run.told("attempt_started")) == 2


@pytest.mark.parametrize("may_requeue", [1, pytest.param(0, marks=pytest.mark.long)], ids=["requeue", "continuation"])
def test_no_host_fits_but_those_of_the_run(
    clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, may_requeue: int
) -> None:
    """The job's constraint leaves it three hosts and it needs three: the one that failed is given up, not the job.

    SLURM would show an idle cluster and Reason=BadConstraints for ever.
    """
    clean.set(JobRequeue=may_requeue)
    clean.run(["scontrol", "update", "NodeName=node[1-3]", "AvailableFeatures=fits", "ActiveFeatures=fits"])
    try:
        run = start(clean, tmp_path, slurm={"constraint": "fits"})
        host = run.state()["nodes"][2]

        inflict.lose_agent(run, 2)

        ends_the_same(run, 3, undisturbed)
        tells(run, ("excluded", {"hosts": [host]}), ("readmitted", {"hosts": [host]}), ("requeued", {}))
        assert len(run.told("attempt_started")) == 2
    finally:
        clean.run(["scontrol", "update", "NodeName=node[1-3]", "AvailableFeatures=", "ActiveFeatures="])


def test_a_host_killed_with_a_spare(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """A spare takes a dead host's place inside the allocation, before SLURM notices; nor does the end wait for that."""
    clean.set(SlurmdTimeout=300)
    run = start(clean, tmp_path, resources={"spare_nodes": 1})
    dead = run.state()["nodes"][1]

    clean.kill(dead)

    killed = time.time()
    second = run.wait("a second round", lambda: [e for e in run.told("round_started") if e.get("round") == 1])[0]
    assert second["t"] - killed < 19
    assert dead not in {r["host"] for r in second["ranks"]}
    ends_the_same(run, 3, undisturbed)
    tells(run, ("node_lost", {"host": dead}), *new_round("node_lost"))
    assert len(run.told("attempt_started")) == 1
    clean.heal(dead)
    clean.wait_job(run.job_id, "COMPLETED")


@pytest.mark.parametrize(
    "which", [pytest.param(0, id="first host"), pytest.param(1, id="another host", marks=pytest.mark.long)]
)
def test_a_host_killed(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, which: int) -> None:
    """A host dies without a spare: the run comes back on others and ends the same."""
    clean.set(SlurmdTimeout=10)
    run = start(clean, tmp_path)

    dead = run.state()["nodes"][which]

    clean.kill(dead)

    ends_the_same(run, 3, undisturbed)
    cause = ("decision", {"evidence": "leader_gone"}) if which == 0 else ("node_lost", {"host": dead})
    tells(run, ("saved", {}), cause, *NEW_ATTEMPT)
    assert dead not in {r["host"] for r in run.told("round_started", attempt=1)[0]["ranks"]}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "user",
    ["", pytest.param("root", marks=pytest.mark.long), pytest.param("daemon", marks=pytest.mark.long)],
    ids=["alone", "awaited", "awaited by another user"],
)
def test_the_first_host_killed_with_a_spare(
    clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, user: str
) -> None:
    """Once SLURM has dropped it another host leads, in the same attempt: the others keep the allocation.

    Without a batch script SLURM would keep the job to its time limit: it is cancelled at the end, after the user's own jobs have been
    freed from waiting for it, or, where another's job waits for its success, requeued on one node, where it ends with 0 at once.
    """
    clean.set(SlurmdTimeout=10)
    # As much as no single host has, and one thread all the same: bits depend on it.
    cpus = {"resources": {"spare_nodes": 1, "cpus_per_task": 4}, "environment": {"variables": {"OMP_NUM_THREADS": 1}}}
    run = start(clean, tmp_path, **cpus)
    dead = run.state()["nodes"][0]
    after = clean.sbatch(f"--uid={user}", "-d", f"afterok:{run.job_id}", wrap="true", cwd="/") if user else None
    awaited = user == "daemon"

    clean.kill(dead)

    ends_the_same(run, 3, undisturbed)
    assert len(run.told("attempt_started")) == 1
    hosts = [r["host"] for r in run.told("round_started")[-1]["ranks"]]
    assert dead not in hosts
    moved = ("leader_revived", {"host": dead, "moved_to": hosts[0]})
    tells(run, ("saved", {}), moved, *new_round("leader_gone")[1:])  # nobody was there to end the round
    # On some versions a requeued job that has lost a node is not updated (`launcher.slurm.versions`): it waits for SLURM's 121 s and
    # for all its nodes.
    if awaited and blocks_accounting(".".join(map(str, clean.version))):
        clean.heal(dead)
    clean.wait_job(run.job_id, "COMPLETED" if awaited else "CANCELLED", limit_s=300)
    if after is not None:
        clean.wait_job(after, "COMPLETED")


def test_a_host_cut_off(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """A host loses its network while its processes live on: they commit nothing, and the run ends the same."""
    clean.set(SlurmdTimeout=10)
    run = start(clean, tmp_path)
    cut = run.state()["nodes"][1]

    clean.cut(cut)
    run.wait("a new start", lambda: len(run.told("round_started")) >= 2)
    clean.heal(cut)

    ends_the_same(run, 3, undisturbed)
    tells(run, ("saved", {}), ("node_lost", {"host": cut}), ("decision", {"evidence": "node_lost"}), *NEW_ATTEMPT)


@pytest.mark.long
def test_a_host_cut_off_that_comes_back_beside_a_spare(
    clean: Cluster, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """The spare trains in its place. Its agent, when it reaches the leader again, sees that it leads, and takes nothing away."""
    run = start(clean, tmp_path, resources={"spare_nodes": 1}, params={"step_s": 0.5})
    cut = run.state()["nodes"][1]
    agent = inflict.agents(run)[1]

    clean.cut(cut)
    run.wait("a round with the spare", lambda: len(run.told("round_started")) == 2)
    clean.heal(cut)
    agent.wait(timeout=120)

    ends_the_same(run, 3, undisturbed)
    assert len(run.told("attempt_started")) == 1
    assert len(run.told("round_started")) == 2
