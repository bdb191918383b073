"""slurmctld dies on the real cluster, beside a requeue or while a run trains: the run ends the same."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import inflict
import psutil
import pytest
from cluster import Cluster
from harness import NEW_ATTEMPT, PATIENCE_S, Run, ends_the_same, start, tells, verb

Undisturbed = Callable[[int], str]


@pytest.mark.long
def test_slurmctld_dies_just_after_a_requeue(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """It took the run back, and its state on disk is older: the job's last process has the run requeued once more."""
    run = start(clean, tmp_path, params={"step_s": 0.5})  # slurmctld writes its state within 5 s

    _forgets_a_requeue(clean, run, tmp_path / "older")
    clean.heal("slurmctld")

    ends_the_same(run, 3, undisturbed)
    tells(run, ("requeued", {}), ("decision", {"evidence": "forgotten", "action": "requeue"}), *NEW_ATTEMPT)


@pytest.mark.long
def test_slurmctld_is_away_longer_than_kill_wait(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """slurmd has killed the job's last process, and nobody is left to ask: `why` says what happened and what continues the run."""
    run = start(clean, tmp_path, params={"step_s": 0.5})  # slurmctld writes its state within 5 s

    _forgets_a_requeue(clean, run, tmp_path / "older")
    clean.wait(lambda: not clean.processes(), "the end of the job's last process")
    clean.heal("slurmctld")
    clean.wait_job(run.job_id, "FAILED")

    said = verb(clean, run, "why")
    assert "SLURM accepted the requeue and then lost it" in said
    assert "launcher resubmit" in said
    verb(clean, run, "resubmit")
    ends_the_same(run, 3, undisturbed)


def _written(file: Path) -> float:
    """When a file was written; 0 while slurmctld replaces it: for a moment it has another name."""
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _forgets_a_requeue(cluster: Cluster, run: Run, older: Path) -> None:
    """slurmctld dies just after it took the run back; on disk is its state of before, as it is for up to 5 s."""
    # Has slurmctld write every file of its state: a young one of 26.05 that is killed does not start again without them.
    cluster.run(["scontrol", "reconfigure"])
    state, asked = cluster.directory / "state", time.time()
    cluster.run(["scontrol", "update", f"JobId={run.job_id}", "Comment=saved"])
    cluster.wait(lambda: _written(state / "job_state") > asked, "slurmctld's state on disk")
    slurmctld = [psutil.Process(pid) for pid in cluster.daemon("slurmctld")]  # and the process that runs its scripts
    for process in slurmctld:
        process.suspend()  # it writes and renames all the time
    shutil.copytree(state, older, ignore=shutil.ignore_patterns("*.new"))
    # Between two renames a file has this name alone, and slurmctld does not start without it.
    for kept in older.glob("*.old"):
        if not kept.with_suffix("").exists():
            shutil.copy2(kept, kept.with_suffix(""))
    for process in slurmctld:
        process.resume()

    inflict.lose_agent(run, 2)
    run.wait("the requeue", lambda: run.told("requeued"))
    for process in slurmctld:  # KillWait is short: SLURM's own tools take their time
        process.kill()
    psutil.wait_procs(slurmctld, timeout=30)
    assert not cluster.daemon("slurmctld")
    cluster.broken.add("slurmctld")
    shutil.rmtree(state)
    shutil.copytree(older, state)


@pytest.mark.long
def test_slurmctld_dies_as_the_requeued_job_starts(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """Its record on disk may be of the life before, that is ended for the requeue or over: nobody has cancelled the run.

    It may also start the job a second time, where the first still runs, and put it on hold for that: `why` says what helps.
    """
    run = start(clean, tmp_path)
    job = run.job_id

    inflict.lose_agent(run, 2)
    clean.wait(lambda: _began_again(clean.job(job)), "the requeued job's start")
    clean.stop_slurmctld()
    clean.heal("slurmctld")

    clean.wait(
        lambda: run.outcome() or _is_held(clean.job(job)),
        "the end",
        PATIENCE_S,
        lambda: (clean.job(job), run.history()[-25:], run.agent_logs()),
    )
    if not run.outcome():
        clean.wait(lambda: f"scontrol release {job}" in verb(clean, run, "why"), "the advice to release it", 30)
        clean.release(job)
    ends_the_same(run, 3, undisturbed)


def _began_again(job: dict[str, str]) -> bool:
    return job.get("JobState") == "RUNNING" and job.get("Restarts") == "1"


def _is_held(job: dict[str, str]) -> bool:
    return "held" in job.get("Reason", "") and job.get("JobState") == "PENDING"


@pytest.mark.long
@pytest.mark.parametrize("daemon", ["slurmctld", "slurmd"])
def test_a_daemon_restarted(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, daemon: str) -> None:
    """slurmctld, or the slurmd of one of the hosts, is killed and started again: the run does not notice."""
    run = start(clean, tmp_path)

    clean.restart(run.state()["nodes"][1] if daemon == "slurmd" else daemon)
    run.wait_saved(len(run.told("saved")) + 1)

    ends_the_same(run, 3, undisturbed)
    tells(run, ("round_started", {}), ("ended", {"state": "completed"}))
    assert len(run.told("round_started")) == 1
    assert not run.told("node_lost") + run.told("signal") + run.told("worker_failed")
