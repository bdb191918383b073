"""What sites decide differently, and what their administrators do by hand: in each case the run ends as it should."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import inflict
import pytest
from cluster import Cluster
from harness import ONE_HOST, Run, ends_the_same, nothing_lost, start, submit, verb

pytestmark = pytest.mark.long
Undisturbed = Callable[[int], str]
LAST_STEP = 160
Act = Callable[[Cluster, Run], Any]


def preempt(cluster: Cluster, run: Run) -> None:
    """A job of a higher priority takes its hosts for some seconds."""
    inflict.preempt(cluster, run.state()["nodes"], seconds=8)


def suspend_by_preemption(cluster: Cluster, run: Run) -> None:
    """SLURM stops its processes where they are, for longer than a node may be silent, and lets them go on."""
    inflict.preempt(cluster, run.state()["nodes"], seconds=25)
    cluster.wait_job(run.job_id, "SUSPENDED")


def preempt_beyond_the_limit(cluster: Cluster, run: Run) -> None:
    """The partition's MaxTime has sunk below the job's limit: once preempted, it waits until somebody lowers that."""
    cluster.set(**{"batch.MaxTime": 5})
    preempt(cluster, run)
    waits_for_a_lower_limit(cluster, run)


def waits_for_a_lower_limit(cluster: Cluster, run: Run) -> None:
    """`why` says what keeps it in the queue; with a lower limit it starts."""
    cluster.wait(
        lambda: cluster.job(run.job_id).get("Reason") == "PartitionTimeLimit",
        "the partition's limit to hold it",
        now=lambda: cluster.job(run.job_id),
    )
    cluster.wait(
        lambda: "asks for more time than its partition batch allows" in verb(cluster, run, "why"),
        "the words for it",
        30,
    )
    cluster.run(["scontrol", "update", f"JobId={run.job_id}", "TimeLimit=5"])


def preempt_without_slurmctld(cluster: Cluster, run: Run) -> None:
    """slurmctld dies while the run saves for the preemption, and is away for a minute.

    Had it accepted the requeue, it could forget that: test_fault_slurmctld.py.
    """
    slow = run.paths.root / "slow-save"
    slow.write_text("5")
    preempt(cluster, run)
    run.wait("the stop", lambda: run.told("stop_requested"))
    cluster.stop_slurmctld()
    assert not run.told("requeued")
    run.wait("the save", lambda: run.told("stopped"))
    slow.unlink()
    time.sleep(60)
    cluster.heal("slurmctld")


def by_hand(*words: str) -> Act:
    """An administrator's scontrol."""
    return lambda cluster, run: cluster.run(["scontrol", *words, run.job_id])


def suspend_and_resume(cluster: Cluster, run: Run) -> None:
    """By hand, for longer than a node may be silent."""
    cluster.run(["scontrol", "suspend", run.job_id])
    cluster.wait_job(run.job_id, "SUSPENDED")
    time.sleep(25)
    cluster.run(["scontrol", "resume", run.job_id])


def hold_and_release(cluster: Cluster, run: Run) -> None:
    """It is requeued into a hold, and released when it lies there."""
    cluster.run(["scontrol", "requeuehold", run.job_id])
    cluster.wait(
        lambda: "held" in cluster.job(run.job_id).get("Reason", ""), "the hold", now=lambda: cluster.job(run.job_id)
    )
    advice = f"scontrol release {run.job_id}"
    cluster.wait(lambda: advice in verb(cluster, run, "why"), "the advice to release it", 30)
    cluster.run(["scontrol", "release", run.job_id])


def shorten(cluster: Cluster, run: Run) -> None:
    """The limit that is left is shorter than the lead at which SLURM warns."""
    cluster.run(["scontrol", "update", f"JobId={run.job_id}", "TimeLimit=1"])


def lengthen(cluster: Cluster, run: Run) -> None:
    """More time than was asked for."""
    cluster.run(["scontrol", "update", f"JobId={run.job_id}", "TimeLimit=90"])


SHORT = {"params": {"step_s": 0.3}, "restart": {"signal_lead_s": 20}}
"""Steps for 48 s, of a job that may be given a limit of a minute."""
CASES: dict[str, tuple[dict[str, object], Act, int]] = {
    "grace 0, KillWait 5": ({"GraceTime": 0, "KillWait": 5}, preempt, 2),
    "suspend": ({"PreemptMode": "SUSPEND"}, suspend_by_preemption, 1),
    "a lower MaxTime": ({}, preempt_beyond_the_limit, 2),
    "no accounting": ({"Accounting": "off"}, preempt, 2),
    "no accounting, JobRequeue=0": ({"Accounting": "off", "JobRequeue": 0}, preempt, 2),
    "slurmctld away while stopping": ({"GraceTime": 20}, preempt_without_slurmctld, 2),
    "requeued by hand": ({}, by_hand("requeue"), 2),
    "held by hand": ({}, hold_and_release, 2),
    "hold of a running job": ({}, by_hand("hold"), 1),
    "suspended by hand": ({}, suspend_and_resume, 1),
    "a shorter limit by hand": ({}, shorten, 2),
    "a longer limit by hand": ({}, lengthen, 1),
}
"""By name: the site's settings, what happens, and how many attempts the run then has."""


@pytest.mark.parametrize("case", CASES)
def test_the_run_ends_the_same(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, case: str) -> None:
    """Bit for bit, in as many attempts as the policy or the hand makes necessary, with no step done twice where there is time."""
    settings, act, attempts = CASES[case]
    clean.set(**settings)
    run = start(clean, tmp_path, resources=ONE_HOST, **(SHORT if act is shorten else {}))

    act(clean, run)

    ends_the_same(run, 3, undisturbed)
    found = len(run.told("attempt_started"))
    # The limit of a minute holds for later attempts, too: a slow machine needs more of them.
    assert found >= attempts if act is shorten else found == attempts
    if run.told("stop_requested"):
        nothing_lost(run)


def test_a_job_beyond_the_partitions_limit_waits(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """It asks for more than MaxTime: SLURM queues it and would never start it; `why` says so, and with a lower limit it runs."""
    clean.set(**{"batch.MaxTime": 5})
    run = submit(tmp_path, clean.env, 3, resources=ONE_HOST)

    waits_for_a_lower_limit(clean, run)

    ends_the_same(run, 3, undisturbed)


def test_runs_are_preempted_as_often_as_it_pleases(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """SLURM holds a job after MaxBatchRequeue requeues of its own (JobHoldMaxRequeue): those of the launcher are not counted."""
    # A setting since 24.05; before, SLURM allows five.
    clean.set(GraceTime=20, **({"MaxBatchRequeue": 1} if clean.version >= (24, 5) else {}))
    run = start(clean, tmp_path, resources=ONE_HOST)
    for attempt in range(1, 4):
        preempt(clean, run)
        run.wait("the next attempt", lambda n=attempt: run.told("round_started", attempt=n))
        if attempt < 3:
            run.wait("training", lambda n=attempt: run.state().get("attempt") == n and run.state().get("step", 0) > 0)

    ends_the_same(run, 3, undisturbed)
    assert [e["attempt"] for e in run.told("attempt_started")] == [0, 1, 2, 3]


@pytest.mark.parametrize("mode", ["REQUEUE", "CANCEL"])
def test_a_run_that_completes_within_its_grace_time(
    clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, mode: str
) -> None:
    """Since 24.05 SLURM takes its job for preempted all the same: nothing is trained twice, and the user's job behind it starts."""
    clean.set(GraceTime=60, PreemptMode=mode)
    run = start(clean, tmp_path, resources=ONE_HOST, params={"step_s": 0.2}, checkpoint={"interval_steps": 100})
    job = run.job_id
    after = clean.sbatch("-N1", f"--dependency=afterok:{job}", wrap="true")
    run.wait_step(LAST_STEP - 19)  # the last epoch
    (run.paths.root / "slow-save").write_text("8")
    run.wait_step(LAST_STEP)

    preempt(clean, run)

    ends_the_same(run, 3, undisturbed)
    assert run.told("signal")
    assert len(run.told("round_started")) == 1
    clean.wait_job(after, "COMPLETED", limit_s=300)
    accounted_for(clean, job, "PREEMPTED" if clean.version >= (24, 5) else "COMPLETED")


@pytest.mark.parametrize(
    "user", ["", "root", "daemon"], ids=["nobody waits", "the user's job waits", "another's job waits"]
)
def test_a_run_that_was_preempted_completes_for_good(
    clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, user: str
) -> None:
    """Since 24.05 SLURM would queue its job again after the end. It does so only where another user's job waits for its success."""
    clean.set(GraceTime=20)
    run = start(clean, tmp_path, resources=ONE_HOST)
    job = run.job_id
    after = clean.sbatch("-N1", f"--uid={user}", f"--dependency=afterok:{job}", wrap="true", cwd="/") if user else ""

    preempt(clean, run)

    ends_the_same(run, 3, undisturbed)
    if after:
        clean.wait_job(after, "COMPLETED", limit_s=300)
    clean.wait(lambda: job not in clean.run(["squeue", "-h", "-o", "%A"]).stdout.split(), "the end of the job", 30)
    assert len(run.told("round_started")) == 2
    # SLURM 26.05 forgets the grace time of an earlier life (measured on 26.05.5); 24.11 does not.
    preempted = (24, 5) <= clean.version < (26, 5) and user != "daemon"
    accounted_for(clean, job, "PREEMPTED" if preempted else "COMPLETED")


def accounted_for(cluster: Cluster, job: str, state: str) -> None:
    """Wait until sacct gives the job's last life this state."""

    def told() -> list[str]:
        return cluster.run(["sacct", "-nXP", "-j", job, "-o", "State"]).stdout.split("\n")[:1]

    cluster.wait(lambda: told() == [state], f"{state} in sacct", 60, told)
