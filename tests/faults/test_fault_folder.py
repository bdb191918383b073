"""The run's folder goes away for some seconds, as a mount does, on the real cluster: the run ends the same, and SLURM never says
that it has completed before it has."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import inflict
import psutil
import pytest
from cluster import Cluster
from harness import ONE_HOST, Run, ends_the_same, start

Undisturbed = Callable[[int], str]


@contextlib.contextmanager
def away(run: Run) -> Iterator[None]:
    """The run's folder is not there; whatever asks for it hears ENOENT."""
    hidden = run.paths.root.with_name("away")
    run.paths.root.rename(hidden)
    try:
        yield
    finally:
        assert not run.paths.root.exists(), "somebody has made the folder anew"
        hidden.rename(run.paths.root)


def states(cluster: Cluster, job: str, seconds: float) -> set[str]:
    """What SLURM says of the job meanwhile."""
    end, seen = time.monotonic() + seconds, set()
    while time.monotonic() < end:
        seen.add(cluster.job(job).get("JobState", ""))
        time.sleep(0.2)
    return seen


@pytest.mark.parametrize("resources", [ONE_HOST, {}], ids=["one host", "three hosts"])
def test_a_folder_that_is_away_while_the_run_trains(
    clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, resources: dict[str, int]
) -> None:
    """4 s: training goes on, one attempt, one round, the undisturbed end, COMPLETED only then."""
    run = start(clean, tmp_path, resources=resources, params={"step_s": 0.1})
    job = run.job_id

    with away(run):
        seen = states(clean, job, 4.0)

    assert seen == {"RUNNING"}
    run.wait_end()
    assert clean.wait_job(job, "COMPLETED", "FAILED")["ExitCode"] == "0:0"  # SLURM forgets a job after 10 s
    ends_the_same(run, 3, undisturbed)
    assert len(run.told("attempt_started")) == len(run.told("round_started")) == 1
    assert run.told("warning")


def test_a_folder_that_is_away_when_the_batch_script_ends(
    clean: Cluster, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """The leader is killed meanwhile: the teardown waits for the folder, and only then has the job requeued."""
    run = start(clean, tmp_path, resources=ONE_HOST, params={"step_s": 0.1})
    job, agent = run.job_id, inflict.agents(run)[0]

    with away(run):
        agent.kill()
        psutil.wait_procs([agent], timeout=30)
        clean.wait(lambda: not [p for p in clean.processes().values() if p.startswith("srun")], "srun's end")
        seen = states(clean, job, 3.0)

    assert seen == {"RUNNING"}
    ends_the_same(run, 3, undisturbed)
    first, second = run.told("attempt_started")
    assert (second["job_id"], second["restart_count"]) == (first["job_id"], 1)
