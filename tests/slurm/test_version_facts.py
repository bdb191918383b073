"""What is said to be true of a version of SLURM, tried on the one that is here."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import pytest
from cluster import Cluster


def told(cluster: Cluster, out: Path, job: str) -> dict[str, str]:
    """The variables that a job of a step printed, once it has ended."""
    cluster.wait_job(job, "COMPLETED", "FAILED")
    text = (out / f"{job}.out").read_text()
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def test_srun_inherits_the_cpus_of_a_task_or_does_not(cluster: Cluster, tmp_path: Path) -> None:
    """`--cpus-per-task` of sbatch is that of srun up to 21.08 and since 23.11 alone; the launcher's srun is told it."""
    out = f"--output={tmp_path}/%j.out"
    ask = "scontrol show step $SLURM_JOB_ID.$SLURM_STEP_ID | tr ' ' '\\n'"
    job = cluster.sbatch("-N1", "-n1", "--cpus-per-task=2", out, wrap=f"srun --exact sh -c {shlex.quote(ask)}")

    assert told(cluster, tmp_path, job)["CPUs"] == ("2" if cluster.version >= (23, 11) else "1")


def test_what_slurm_says_of_tasks_and_gpus_of_a_step(cluster: Cluster, tmp_path: Path) -> None:
    """The variables that agents and scripts find: tasks of each node in SLURM's short form, GPUs of the node and of the job."""
    out = f"--output={tmp_path}/%j.out"
    job = cluster.sbatch("-N2", "--ntasks-per-node=1", "--gpus-per-node=2", out, wrap="srun env")
    found = told(cluster, tmp_path, job)

    assert found["SLURM_TASKS_PER_NODE"] == "1(x2)"
    assert found["SLURM_GPUS_PER_NODE"] == "2"
    assert found["SLURM_GPUS_ON_NODE"] == "2"
    assert found["CUDA_VISIBLE_DEVICES"] == "0,1"


@pytest.mark.long
def test_the_requeue_delay_counts_since_25_11(cluster: Cluster) -> None:
    """Before, a requeued job waits for two minutes, whatever the parameter says; since then one second more than that."""
    parameters = "bf_interval=1,batch_sched_delay=0,sched_interval=2,bf_continue"
    cluster.set(SchedulerParameters=f"{parameters},requeue_delay=5")
    job = cluster.sbatch("-N1", "--requeue", wrap="sleep 300")
    cluster.wait_job(job, "RUNNING")
    cluster.run(["scontrol", "requeue", job])
    cluster.wait_job(job, "PENDING")
    eligible = time.mktime(time.strptime(cluster.job(job)["EligibleTime"], "%Y-%m-%dT%H:%M:%S"))
    left_s = eligible - time.time()
    cluster.run(["scancel", job])

    assert left_s < 10 if cluster.version >= (25, 11) else 60 < left_s < 130
