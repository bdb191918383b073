"""A rehearsal on real nodes: in an allocation of its own, which it gives back, or in the one around it, which stays."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import harness
import pytest
from login import LIMIT_S, Login

pytestmark = pytest.mark.slurm


@pytest.fixture
def job(place: Login) -> Login:
    """A job of two nodes whose state is all saved; no other one has nodes."""
    place.cluster.cancel_all()
    (place.folder / "job.yaml").write_text(harness.job_text(2, params={"step_s": 0.0}, preflight=True))
    return place


def queue(job: Login) -> list[str]:
    """Names of all jobs."""
    return job.cluster.run(["squeue", "-h", "-o", "%j"]).stdout.split()


def test_the_drill_passes_on_nodes_of_the_debug_partition(job: Login) -> None:
    """The profile's debug partition is asked for two nodes; a killed rank resumes to the same end; nothing is left."""
    (job.folder / "site.yaml").write_text("debug_partition: high\n")
    job.cluster.env["LAUNCHER_SITE"] = str(job.folder / "site.yaml")
    try:
        done = job.launcher("dry-run", "job.yaml", "--slurm", "--steps", "12", "--seed", "3")
    finally:
        del job.cluster.env["LAUNCHER_SITE"]
    said = done.stdout

    assert "asking partition high for 2 nodes" in said
    assert "nodes    node1, node2: checks passed; all-reduce" in said
    assert "drill    passed" in said
    assert not job.runs.exists()
    job.cluster.wait(lambda: queue(job) == [], "an empty queue")  # it is COMPLETING until its hosts have answered


@pytest.mark.long
def test_the_allocation_around_it_is_used_and_stays(job: Login) -> None:
    """Inside salloc the rehearsal runs on the allocation's nodes, of which there may be fewer than the job wants."""
    words = [
        sys.executable,
        "-m",
        "launcher",
        "dry-run",
        "job.yaml",
        "--slurm",
        "--steps",
        "8",
        "--json",
        "resources.nodes=3",
    ]
    env = {"XDG_STATE_HOME": str(job.folder / "state"), "LAUNCHER_RUNS_DIR": str(job.runs)}
    shell = [*words[:-1], "resources.nodes=3", ";", "squeue", "-h", "-j", "$SLURM_JOB_ID", "-o", "%T"]
    done = job.cluster.run(
        ["salloc", "-N2", "-n2", "-c2", "bash", "-c", " ".join(shell)], env=env, cwd=job.folder, timeout=LIMIT_S
    )
    text, _, after = done.stdout.rpartition("}")
    found = json.loads(text + "}")

    assert found["notes"] == ["on 2 nodes instead of 3"]
    assert (found["differs"], found["first"]["hosts"]) == ([], ["node1", "node2"])
    assert after.split() == ["RUNNING"]


def test_a_rehearsal_that_is_terminated_gives_its_allocation_back(job: Login) -> None:
    """TERM in the middle of a take: the command ends, and so does the allocation."""
    (job.folder / "job.yaml").write_text(harness.job_text(2, params={"step_s": 1.0}))
    env = {**job.cluster.env, "XDG_STATE_HOME": str(job.folder / "state"), "LAUNCHER_RUNS_DIR": str(job.runs)}
    words = [sys.executable, "-m", "launcher", "dry-run", "job.yaml", "--slurm", "--steps", "200"]
    process = subprocess.Popen(words, env=env, cwd=job.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    job.cluster.wait(lambda: list(job.runs.glob("*/*/state.json")), "the first take", limit_s=LIMIT_S)
    process.send_signal(signal.SIGTERM)

    assert process.wait(60) == -signal.SIGTERM
    job.cluster.wait(lambda: queue(job) == [], "an empty queue", limit_s=60)
    began = time.monotonic()
    while job.cluster.processes() and time.monotonic() - began < 30:
        time.sleep(0.2)
    assert job.cluster.processes() == {}


def test_a_request_that_slurm_refuses_is_one_sentence(job: Login) -> None:
    """A QOS or account that is not there: SLURM's words, and nothing on disk."""
    done = job.launcher("dry-run", "job.yaml", "--slurm", "slurm.reservation=nosuch", ok=False)

    assert done.returncode == 6
    assert "SLURM granted no nodes for the rehearsal: " in done.stderr
    assert "eservation" in done.stderr
    assert not job.runs.exists()
