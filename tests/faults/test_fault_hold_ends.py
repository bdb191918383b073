"""A hold on the real cluster: SLURM or its user ends it, and its rerun saves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import inflict
import pytest
from cluster import Cluster
from harness import Run, digest, job_text
from held import LIMIT_S, WORLD, Held

Undisturbed = Callable[[int], str]


def test_scancel_ends_both_as_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    """The rerun hears it with its hold, stops at an agreed step, and is told before the hold."""
    made = Held(cluster, tmp_path)
    run = made.begun()
    cluster.run(["scancel", made.hold.job_id])

    assert made.hold.wait_end()["state"] == "cancelled"
    assert (run.outcome() or {})["state"] == "cancelled"
    assert run.told("stopped")[0]["lost_steps"] == 0
    made.hold.wait_no_process()
    run.wait_no_process()


def test_a_preempted_hold_lets_its_rerun_save(cluster: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """The hold has nothing to lose and ends as completed; it is not requeued. The rerun goes on by resubmit, in a job of its own."""
    made = Held(cluster, tmp_path)
    run, said = made.rerun("--detach", "params.step_s=0.2")
    assert said.returncode == 0, said.stdout + said.stderr
    run.wait_saved(1)
    hosts = made.hold.told("rerun_started")[-1]["hosts"]
    other = inflict.preempt(cluster, hosts)
    outcome = made.hold.wait_end()

    assert outcome["state"] == "completed"
    assert outcome["reason"].startswith("The job was preempted")
    ended = run.outcome() or {}
    assert ended["state"] == "failed"
    assert "`launcher resubmit` continues it" in ended["reason"]
    (agreed,) = run.told("agreed")
    assert run.told("saved")[-1]["step"] == agreed["step"]
    cluster.wait_job(other, "COMPLETED")
    more = made.launcher("resubmit", run.paths.id, "params.step_s=0.0")
    assert more.returncode == 0, more.stdout + more.stderr
    run.wait("the end of its second attempt", lambda: (run.outcome() or {}).get("state") == "completed")
    assert run.told("round_started", attempt=1)[0]["resume_step"] == agreed["step"]
    assert digest(run) == undisturbed(WORLD)
    run.wait_no_process()


@pytest.mark.long
def test_the_time_limit_of_the_hold_is_the_reruns(cluster: Cluster, tmp_path: Path) -> None:
    """SLURM announces it to the hold's job: the rerun stops and saves in time."""
    made = Held(
        cluster,
        tmp_path,
        resources={"timeout_min": 2},
        distributed={"init_timeout_min": 1},
        restart={"signal_lead_s": 30},
    )
    run = made.begun()

    assert made.hold.wait_end()["reason"] == "The time limit is near."
    assert str((run.outcome() or {})["reason"]).startswith("The time limit is near")
    assert run.told("stopped")[0]["lost_steps"] == 0
    made.hold.wait_no_process()


def test_inside_salloc_the_allocation_is_held_and_stays(
    cluster: Cluster, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """`launcher cancel` ends the hold, and not the allocation that the user has."""
    (tmp_path / "job.yaml").write_text(job_text(WORLD))
    launcher = f"{sys.executable} -m launcher"
    shell = [
        f"{launcher} hold job.yaml", f"{launcher} rerun hold-steady", f"{launcher} rerun hold-steady --detach params.epochs=500",
        f"{launcher} cancel hold-steady", "until [ -e runs/hold-*/outcome.json ]; do sleep 0.1; done", "squeue -h -j $SLURM_JOB_ID -o %T",
    ]  # fmt: skip
    env = {"LAUNCHER_RUNS_DIR": str(tmp_path / "runs"), "XDG_STATE_HOME": str(tmp_path / "state")}
    said = cluster.run(
        ["salloc", "-N2", "-n2", "-c2", "bash", "-ec", "\n".join(shell)], env=env, cwd=tmp_path, timeout=LIMIT_S
    )

    assert said.stdout.split()[-1] == "RUNNING", said.stdout + said.stderr
    assert "cancelled; the allocation stays" in said.stdout  # "is being" where it takes longer than `cancel` waits
    hold = Run(next(p for p in (tmp_path / "runs").iterdir() if p.name.startswith("hold-")))
    assert (hold.outcome() or {})["state"] == "cancelled"
    first = Run(tmp_path / "runs" / hold.told("rerun_started")[0]["run"])
    assert digest(first) == undisturbed(WORLD)
    hold.wait_no_process()
