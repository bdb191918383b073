"""Giving an allocation back, from inside jobs of the real cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster

from launcher.slurm import handback, later_jobs
from launcher.slurm.commands import Answer
from launcher.slurm.jobs import JobFacts
from launcher.slurm.restart import NET_LEAD_S

INSIDE = """
import json, os, sys, time
from pathlib import Path
from launcher.slurm import handback, later_jobs
from launcher.slurm.environ import job_environ

here = job_environ()
folder = Path(sys.argv[1])
said = {"life": here.restart_count, "id": here.own_id, "raw": here.job_id, "host": here.node_name, "began": time.time()}

def told(done):
    return [done.ok, done.forbidden, done.why, done.job_id]

%s

said["ended"] = time.time()
path = folder / f"{here.own_id}.{here.restart_count}"
path.with_suffix(".tmp%%d" %% os.getpid()).write_text(json.dumps(said))
path.with_suffix(".tmp%%d" %% os.getpid()).rename(f"{path}.json")
"""

REQUEUE = """
if here.restart_count == 0:
    said["requeue"] = told(handback.requeue(here.own_id, restart_count=0))
    said["again"] = told(handback.requeue(here.own_id, restart_count=0))
    %s
    said["forward"] = told(handback.pull_forward(here.own_id, %d))
"""
LEAD_S = 8  # a busy machine ends the old processes late, and SLURM then sets the full delay of 121 s again


@pytest.fixture(scope="module", autouse=True)
def patient(cluster: Cluster) -> Iterator[None]:
    """Processes that ignore a requeue's TERM have a minute to do what they must, also on a busy machine."""
    cluster.set(KillWait=60)
    yield
    cluster.restore({})


def write_job(tmp_path: Path, body: str) -> Path:
    """An sbatch script whose one step runs ``body`` in Python and survives the TERM that a requeue sends."""
    program = tmp_path / "inside.py"
    program.write_text("import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)\n" + INSIDE % body)
    script = tmp_path / "job.sbatch"
    script.write_text(
        f"#!/bin/bash\n#SBATCH --open-mode=append\n#SBATCH --output={tmp_path}/out\nexport PYTHONPATH={Path(__file__).parents[2]}\n"
        f"srun {sys.executable} {program} {tmp_path}\n"
    )
    return script


def said(cluster: Cluster, tmp_path: Path, name: str) -> dict[str, Any]:
    """What one life of a job wrote at its end."""
    path = tmp_path / f"{name}.json"
    out = tmp_path / "out"
    cluster.wait(path.exists, f"{name}", 240, lambda: out.read_text() if out.exists() else "no output")
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def test_a_job_requeues_itself(cluster: Cluster, tmp_path: Path) -> None:
    """A job requeues itself from inside; a second request is harmless, and its start can be pulled forward."""
    job = cluster.sbatch(write_job(tmp_path, REQUEUE % ("", LEAD_S)))
    first, second = said(cluster, tmp_path, f"{job}.0"), said(cluster, tmp_path, f"{job}.1")

    assert (first["requeue"], first["again"]) == ([True, False, "", ""], [True, False, "", ""])
    assert first["forward"][0] is True
    assert second["began"] >= first["ended"]
    assert cluster.wait_job(job, "COMPLETED")["Restarts"] == "1"


@pytest.mark.quiet
def test_pulled_forward_it_does_not_wait_two_minutes(cluster: Cluster, tmp_path: Path) -> None:
    """Even with the lead that is only a net a requeued job is back within a minute, not after the 121 s of its old credential."""
    job = cluster.sbatch(write_job(tmp_path, REQUEUE % ("", NET_LEAD_S)))
    first, second = said(cluster, tmp_path, f"{job}.0"), said(cluster, tmp_path, f"{job}.1")

    assert second["began"] - first["ended"] < 60


def test_excluded_hosts_are_not_used_again(cluster: Cluster, tmp_path: Path) -> None:
    """Hosts are excluded while the job completes; what the user excluded is known, and what the job could do without, too.

    The constraint, which the script does not name, fits three hosts, of which the user excludes one: the job can start without
    this one, and not without the third as well. SLURM says so while the job completes and holds its host.
    """
    body = """
    wished = handback.wishes(here.own_id)
    said["wished"], users = [wished["partition"], wished["constraint"]], handback.excluded(wished)
    ask = lambda *hosts: handback.could_start(JOB, {**wished, "exclude": ",".join([*users, *hosts])}, environ=os.environ)
    said["could"] = [ask(), ask(here.node_name), ask(here.node_name, "node4"), ask("node2", "node3", "node4")]
    said["exclude"] = told(handback.exclude(here.own_id, [*users, here.node_name]))
"""
    cluster.run(["scontrol", "update", "NodeName=node[1-3]", "AvailableFeatures=fits", "ActiveFeatures=fits"])
    try:
        script = write_job(
            tmp_path, REQUEUE % (body.replace("JOB", repr(str(tmp_path / "job.sbatch"))).strip(), LEAD_S)
        )
        job = cluster.sbatch("--exclude=node1", "--constraint=fits", script)
        first, second = said(cluster, tmp_path, f"{job}.0"), said(cluster, tmp_path, f"{job}.1")
    finally:
        cluster.run(["scontrol", "update", "NodeName=node[1-3]", "AvailableFeatures=", "ActiveFeatures="])

    assert first["wished"] == ["batch", "fits"]
    assert first["could"] == [True, True, True, False]
    assert first["exclude"][0] is True
    assert {first["host"], second["host"]} == {"node2", "node3"}


def test_a_cancel_in_the_last_moment_stands(cluster: Cluster, tmp_path: Path) -> None:
    """scancel between the last look and the request: `scontrol requeue` would resurrect the job, `requeue` does not."""
    body = """
real = handback.ask
def late(*words, **how):
    if words[:2] == ("scontrol", "requeue"):
        real("scancel", here.own_id)
    return real(*words, **how)
handback.ask = late
done = handback.requeue(here.own_id, restart_count=0)
said["requeue"] = [done.ok, done.ended]
"""
    job = cluster.sbatch(write_job(tmp_path, body))

    assert said(cluster, tmp_path, f"{job}.0")["requeue"] == [False, True]
    cluster.wait(lambda: cluster.job(job).get("JobState", "CANCELLED") == "CANCELLED", "the cancelled job's end")
    cluster.wait(lambda: not cluster.run(["squeue", "-h"]).stdout, "an empty queue")


def test_array_elements_requeue_as_themselves(cluster: Cluster, tmp_path: Path) -> None:
    """Each element of an array comes back once; the last one, whose plain id is the array's, takes no other with it."""
    job = cluster.sbatch("--array=0-2", "--cpus-per-task=1", write_job(tmp_path, REQUEUE % ("", LEAD_S)))
    lives = {i: [said(cluster, tmp_path, f"{job}_{i}.{life}") for life in (0, 1)] for i in range(3)}

    cluster.wait(
        lambda: job not in cluster.run(["squeue", "-h", "-t", "PD,R,CG", "-o", "%F"]).stdout, "the array's end"
    )
    assert {i: [life["requeue"][0] for life in both[:1]] for i, both in lives.items()} == {
        0: [True],
        1: [True],
        2: [True],
    }
    assert job in {both[0]["raw"] for both in lives.values()}
    assert sorted(p.name for p in tmp_path.glob("*.2.json")) == []


def test_a_job_that_may_not_come_back_stays_away(cluster: Cluster, tmp_path: Path) -> None:
    """After `forbid_requeue` neither the job itself nor root can requeue it."""
    body = """
said["forbid"] = told(handback.forbid_requeue(here.own_id))
said["requeue"] = told(handback.requeue(here.own_id, restart_count=0))
"""
    job = cluster.sbatch(write_job(tmp_path, body))
    first = said(cluster, tmp_path, f"{job}.0")
    by_root = cluster.run(["scontrol", "requeue", job], check=False)

    assert first["forbid"] == [True, False, "", ""]
    assert first["requeue"][:2] == [False, True]
    assert by_root.returncode != 0
    assert cluster.wait_job(job, "COMPLETED")["Restarts"] == "0"


def test_where_requeueing_is_forbidden_a_continuation_follows(cluster: Cluster, tmp_path: Path) -> None:
    """With JobRequeue=0 `requeue` says that it is forbidden; a continuation starts when the job has ended."""
    cluster.set(JobRequeue=0)
    body = f"""
if not (folder / "done").exists():
    (folder / "done").touch()
    said["requeue"] = told(handback.requeue(here.own_id, restart_count=0))
    said["next"] = told(later_jobs.submit_continuation({str(tmp_path / "job.sbatch")!r}, here.own_id, name="job.sbatch", environ=os.environ))
    time.sleep(2)
"""
    job = cluster.sbatch(write_job(tmp_path, body))
    first = said(cluster, tmp_path, f"{job}.0")
    second = said(cluster, tmp_path, f"{first['next'][3]}.0")

    assert first["requeue"][:2] == [False, True]
    assert first["next"][0] is True
    assert second["began"] >= first["ended"]


@pytest.mark.parametrize(
    ("version", "resized", "updated"),
    [("24.11.5", True, False), ("25.11.0", True, False), ("24.11.5", None, False), ("24.11.5", False, True),
     ("22.05.8", True, True), ("26.05.5", True, True), ("22.05.8", None, True), ("", True, False), ("", False, True)],
)  # fmt: skip
def test_a_requeued_job_that_has_lost_a_node_is_not_updated_where_that_blocks_the_accounting(
    version: str, resized: bool | None, updated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What slurmdbd hears of is left alone (StartTime, size), also where SLURM does not say whether one is lost (None) or which version it
    is (""); what it does not hear of is set. slurmctld itself is asked: the run may have been submitted to an older one."""
    asked: list[str] = []

    def ask(*words: str, **_: object) -> Answer:
        if words[1] == "show":
            return Answer(
                words,
                0 if version else 1,
                f"AccountingStorageType = x\nSLURM_VERSION           = {version}\n" if version else "",
            )
        asked.append(words[-1])
        return Answer(words, 0)

    facts = None if resized is None else JobFacts(job_id="7", state="COMPLETING", resized=resized)
    monkeypatch.setattr(handback, "job_facts", lambda *_, **__: facts)
    monkeypatch.setattr(handback, "ask", ask)

    heard = [
        handback.pull_forward("7", 5),
        handback.set_nodes("7", 2, 4),
        handback.ask_for_one_cpu("7"),
    ]
    handback.exclude("7", ["node1"])

    assert [done.ok for done in heard] == [updated] * 3
    settings = ["StartTime=now+5seconds", "NumNodes=2-4", "NumCPUs=1"] if updated else []
    assert asked == [*settings, "ExcNodeList=node1"]


@pytest.mark.parametrize(("version", "looks"), [("24.11.5", 3), ("22.05.8", 1)])
def test_a_requeued_job_that_has_lost_a_node_is_cancelled_once_it_has_ended(
    version: str, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the cancel would block the accounting; others are cancelled at once."""
    looked: list[str] = []

    def ask(*words: str, **_: object) -> Answer:
        if words[0] != "squeue":
            return Answer(words, 0, f"SLURM_VERSION = {version}\n")
        looked.append(words[-2])
        return Answer(words, 0, "7\n" if len(looked) < 3 else "")

    monkeypatch.setattr(handback, "ask", ask)
    monkeypatch.setattr(handback, "job_facts", lambda job, **_: JobFacts(job_id=job, state="COMPLETING", resized=True))
    monkeypatch.setattr(handback.time, "sleep", lambda _: None)

    handback.wait_to_cancel(("6", "7"))

    assert looked == ["--jobs=6,7"] * looks


def test_a_job_that_does_not_exist_is_told_without_an_exception(cluster: Cluster, monkeypatch: Any) -> None:
    """Refusals come as values with SLURM's words."""
    monkeypatch.setenv("SLURM_CONF", cluster.env["SLURM_CONF"])
    results = [
        handback.requeue("4000000", restart_count=0, limit_s=1),
        handback.pull_forward("4000000"),
        handback.exclude("4000000", ["node1"]),
        handback.exclude("4000000", ["node1; rm -rf /"]),
        handback.forbid_requeue("4000000"),
        later_jobs.submit_continuation("/no/such/script", "4000000", name="x", environ=cluster.env),
    ]

    assert [r.ok for r in results] == [False] * 6
    assert all(r.why for r in results)
