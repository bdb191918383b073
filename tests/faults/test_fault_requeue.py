"""Giving the allocation back on the real cluster: where requeueing is forbidden, and when the leader is killed meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import inflict
import psutil
import pytest
from cluster import Cluster
from harness import Run, digest, ends_the_same, start, submit

from launcher.run.paths import RunPaths

pytestmark = pytest.mark.long
Undisturbed = Callable[[int], str]
WORLD = 2


def launcher(cluster: Cluster, run: Run, *words: str) -> str:
    """One call of the command on the login host."""
    place = run.paths.root.parent
    env = {**os.environ, **cluster.env, "LAUNCHER_RUNS_DIR": str(place), "XDG_STATE_HOME": str(place.parent / "state")}
    done = subprocess.run(
        [sys.executable, "-m", "launcher", *words], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def status(cluster: Cluster, run: Run) -> dict[str, Any]:
    """What `launcher status --json` says."""
    value: dict[str, Any] = json.loads(launcher(cluster, run, "status", run.paths.id, "--json"))
    return value


def jobs_of(run: Run) -> list[str]:
    """The job of each attempt."""
    return [str(e["job_id"]) for e in run.told("attempt_started")]


def batch_script(run: Run) -> psutil.Process:
    """The shell of the run's batch script, whose srun names the run."""
    above = (p for srun in inflict.sruns(run) for p in srun.parents())
    return inflict.those(above, lambda process: any(word.endswith("/slurm_script") for word in process.cmdline()))[0]


FORBIDDEN: dict[str, Callable[[Cluster, Run], object]] = {
    "JobRequeue=0": lambda cluster, run: None,
    "--no-requeue": lambda cluster, run: cluster.run(["scontrol", "update", f"JobId={run.job_id}", "Requeue=0"]),
}


@pytest.mark.parametrize("site", FORBIDDEN)
def test_where_requeueing_is_forbidden_another_job_carries_the_run_on(
    clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, site: str
) -> None:
    """A preempted run goes on in one other job, never in both; status names it, and for ls it runs; the end is the same."""
    clean.set(**({"JobRequeue": 0} if site == "JobRequeue=0" else {}))
    run = start(clean, tmp_path, WORLD)
    FORBIDDEN[site](clean, run)

    inflict.preempt(clean, run.state()["nodes"])

    run.wait("the continuation", lambda: run.told("first_step", attempt=1))
    old, new = jobs_of(run)
    assert old != new
    assert status(clean, run)["job_id"] == new
    assert [row["state"] for row in json.loads(launcher(clean, run, "ls", "--json"))] == ["running"]
    ends_the_same(run, WORLD, undisturbed)
    assert jobs_of(run) == [old, new]
    assert clean.job(old).get("Restarts", "0") == "0"
    (stopped,) = run.told("stopped")
    assert stopped["lost_steps"] == 0


@pytest.mark.parametrize("cause", ["time limit", "dead leader", "grace 0"])
def test_continuations_of_every_cause(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, cause: str) -> None:
    """JobRequeue=0: the time limit, a killed leader and a preemption without grace lose nothing either."""
    clean.set(JobRequeue=0, GraceTime=0, PreemptMode="CANCEL")
    if cause == "time limit":
        limits = {
            "resources": {"timeout_min": 1},
            "restart": {"signal_lead_s": 20},
            "distributed": {"init_timeout_min": 0.9},
        }
        run = submit(tmp_path, clean.env, WORLD, params={"step_s": 0.6}, **limits)
    else:
        run = start(clean, tmp_path, WORLD)
    if cause == "dead leader":
        inflict.lose_agent(run, 0)
    elif cause == "grace 0":
        inflict.preempt(clean, run.state()["nodes"])

    ends_the_same(run, WORLD, undisturbed)

    assert len(set(jobs_of(run))) == len(jobs_of(run)) >= 2


@pytest.mark.long
@pytest.mark.parametrize("end", ["time limit", "cancelled", "preempted"])
def test_the_job_of_the_next_attempt_is_queued_early(
    clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, end: str
) -> None:
    """`restart.queue_early`: held from the start of training, released at the time limit alone; nothing of it is left at the end."""
    priority = {"PriorityFlags": "ACCRUE_ALWAYS", "PriorityWeightAge": 100000, "PriorityMaxAge": "0-00:10"}
    clean.set(PriorityType="priority/multifactor", **priority)
    clean.restart("slurmctld")
    try:
        run = submit(
            tmp_path, clean.env, WORLD, params={"step_s": 0.6}, resources={"timeout_min": 1 if end == "time limit" else 5},
            restart={"signal_lead_s": 20, "queue_early": True}, distributed={"init_timeout_min": 0.9},
        )  # fmt: skip
        (queued,) = run.wait("a job", lambda: run.told("queued_early"))
        held = clean.job(queued["job_id"])
        assert (held["JobState"], held["Reason"]) == ("PENDING", "JobHeldUser")
        run.wait_saved(1)
        if end == "cancelled":
            clean.run(["scancel", run.job_id])
            assert run.wait_end()["state"] == "cancelled"
        else:
            if end == "preempted":
                inflict.preempt(clean, run.state()["nodes"])
            ends_the_same(run, WORLD, undisturbed)
            first, second, *_ = run.told("attempt_started")
            if end == "time limit":
                assert jobs_of(run)[:2] == [run.job_id, queued["job_id"]]
                (back,) = run.told("requeued", attempt=0)
                print(f"the next attempt began {second['t'] - back['t']:.1f} s after the first one was given back")
            else:
                assert second["job_id"] == first["job_id"]
        clean.wait(lambda: not clean.run(["squeue", "-h", f"--name={run.paths.id}"]).stdout.strip(), "no job left")
    finally:
        clean.set(PriorityType="priority/basic")
        clean.restart("slurmctld")


@pytest.mark.parametrize("how", ["continuation", "requeue"])
def test_a_cancel_in_the_gap_is_for_good(clean: Cluster, tmp_path: Path, how: str) -> None:
    """`launcher cancel` while nothing runs, between two attempts: the run ends cancelled and no job is left."""
    clean.set(**({"JobRequeue": 0} if how == "continuation" else {}))
    run = start(clean, tmp_path, WORLD)
    blocker = inflict.preempt(clean, list(clean.hosts), seconds=600)
    run.wait("handed back", lambda: run.told("requeued", how=how))
    clean.wait_job(blocker, "RUNNING")
    assert status(clean, run)["state"] == "pending"

    launcher(clean, run, "cancel", run.paths.id)

    assert run.wait_end()["state"] == "cancelled"
    clean.run(["scancel", blocker])
    clean.wait(lambda: not clean.run(["squeue", "-h"]).stdout.strip(), "an empty queue")
    time.sleep(3)
    assert not clean.run(["squeue", "-h"]).stdout.strip()
    assert len(run.told("attempt_started")) == 1
    run.wait_no_process()


def test_scancel_of_the_continuation(clean: Cluster, tmp_path: Path) -> None:
    """The new job's id, which status names, is what scancel takes; the run is then told to be cancelled."""
    clean.set(JobRequeue=0)
    run = start(clean, tmp_path, WORLD)
    inflict.preempt(clean, run.state()["nodes"])
    run.wait("the continuation", lambda: run.told("first_step", attempt=1))

    clean.run(["scancel", status(clean, run)["job_id"]])

    assert run.wait_end()["state"] == "cancelled"
    time.sleep(3)
    assert len(run.told("attempt_started")) == 2
    assert not clean.run(["squeue", "-h", "-t", "PD,R"]).stdout.strip()


def test_two_jobs_of_one_run(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """The same run submitted twice by accident: the newest claim leads, the other leaves and requeues nothing."""
    run = start(clean, tmp_path, 1, params={"step_s": 0.1})
    old = run.job_id
    new = clean.sbatch("--hold", run.paths.sbatch)
    shutil.copyfile(run.paths.submitit / f"{old}_submitted.pkl", run.paths.submitit / f"{new}_submitted.pkl")

    clean.run(["scontrol", "release", new])

    run.wait("the second leader", lambda: run.told("attempt_started", attempt=1))
    clean.wait_job(old, "COMPLETED", "FAILED", "")
    ends_the_same(run, 1, undisturbed)
    assert jobs_of(run) == [old, new]
    assert clean.job(old).get("Restarts", "0") == "0"


KILLS = {
    "before the requeue": ("before", "requeue"),
    "after the requeue": ("after", "requeue"),
    "after the start was set": ("after", "update"),
}


def with_deadly(tmp_path: Path, command: str) -> tuple[dict[str, str], Callable[[str, str], object]]:
    """A PATH on which the first ``command`` whose words begin so kills its caller, before or after it has done its work."""
    folder = tmp_path / "bin"
    folder.mkdir()
    real = shutil.which(command)
    script = folder / command
    script.write_text(
        "#!/bin/bash\n"
        f"if read -r when pattern < {folder}/order && [[ $* == $pattern* ]] && mv {folder}/order {folder}/done; then\n"
        f'  [ "$when" = before ] || {real} "$@"\n  kill -9 $PPID\n  exit 1\nfi 2>/dev/null\nexec {real} "$@"\n'
    )
    script.chmod(0o755)

    def arm(when: str, pattern: str) -> object:
        (folder / "order.new").write_text(f"{when} {pattern}\n")
        return (folder / "order.new").rename(folder / "order")

    return {"PATH": f"{folder}:{os.environ['PATH']}"}, arm


@pytest.mark.parametrize("moment", KILLS)
def test_the_leader_is_killed_while_it_hands_back(
    clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, moment: str
) -> None:
    """kill -9 at any step of the handing over: the run comes back once and ends the same."""
    env, arm = with_deadly(tmp_path, "scontrol")
    run = submit(tmp_path, {**clean.env, **env}, WORLD)
    run.wait_saved(1)
    run.wait_step(13)
    arm(*KILLS[moment])

    inflict.preempt(clean, run.state()["nodes"])

    ends_the_same(run, WORLD, undisturbed)
    assert (tmp_path / "bin" / "done").exists()
    assert len(run.told("attempt_started")) == 2
    assert len(set(jobs_of(run))) == 1


def test_the_leader_is_killed_behind_its_continuation(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """sbatch has taken the continuation, and the leader dies before it can tell: that job is found, and no other made."""
    clean.set(JobRequeue=0)
    env, arm = with_deadly(tmp_path, "sbatch")
    run = submit(tmp_path, {**clean.env, **env}, WORLD)
    run.wait_saved(1)
    run.wait_step(13)
    arm("after", "--parsable")

    inflict.preempt(clean, run.state()["nodes"])

    ends_the_same(run, WORLD, undisturbed)
    assert (tmp_path / "bin" / "done").exists()
    assert len(jobs_of(run)) == 2

    def listed() -> bool:  # slurmctld tells slurmdbd in its own time
        ids = clean.run(["sacct", "-nX", f"--name={run.paths.id}", "-o", "JobID"]).stdout.split()
        return sorted(set(ids)) == sorted(jobs_of(run))

    def known() -> list[str]:
        return clean.run(["sacct", "-nXP", "-o", "JobID,JobName,State"]).stdout.splitlines()[-5:]

    clean.wait(listed, "both jobs, and no other, in sacct", now=known)


def test_a_leader_killed_while_it_cancels(clean: Cluster, tmp_path: Path) -> None:
    """scancel, and the leader dies before it has written the end: cancelled all the same, and never back."""
    env, arm = with_deadly(tmp_path, "scontrol")
    run = submit(tmp_path, {**clean.env, **env}, 1)
    run.wait_saved(1)
    arm("after", f"update JobId={run.job_id} Requeue=0")

    clean.run(["scancel", run.job_id])

    assert run.wait_end()["state"] == "cancelled"
    assert (tmp_path / "bin" / "done").exists()
    time.sleep(3)
    assert clean.job(run.job_id).get("JobState", "") in ("CANCELLED", "")
    assert len(run.told("attempt_started")) == 1


DEATHS: dict[str, Callable[[Run], object]] = {
    "batch script": lambda run: batch_script(run).send_signal(signal.SIGKILL),
    "srun and keeper": lambda run: [inflict.lose_keeper(run), inflict.kill_srun(run)],
    "batch script and leader": lambda run: [batch_script(run).kill(), inflict.kill_agent(run, 0)],
}


@pytest.mark.parametrize("who", DEATHS)
def test_processes_around_the_leader_die(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, who: str) -> None:
    """kill -9 of the batch script's shell, or of both that it waits for: the run comes back and ends the same."""
    run = start(clean, tmp_path, WORLD)

    DEATHS[who](run)

    ends_the_same(run, WORLD, undisturbed)
    assert len(run.told("attempt_started")) == 2


def test_a_preempted_point_of_a_sweep(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """Of three elements of an array one is preempted: it alone comes back, as itself; all end the same."""
    job = {"params": {"note": ""}, "sweep": {"params.note": ["a", "b", "c"]}, "slurm": {"exclusive": True}}
    sweep = submit(tmp_path, clean.env, 1, **job)
    points = [Run(p) for p in sorted(sweep.paths.root.iterdir()) if RunPaths(p).spec.exists()]
    assert len(points) == 3
    for point in points:
        point.wait_saved(1)
    victim = points[1]

    host = victim.state()["nodes"][0]
    others = [p.state()["nodes"][0] for p in points if p is not victim]
    assert host not in others
    inflict.preempt(clean, [host])

    for point in points:
        assert point.wait_end()["state"] == "completed"
    assert [len(p.told("attempt_started")) for p in points] == [1, 2, 1]
    first, second = jobs_of(victim)
    assert first == second == victim.job_id
    expected = undisturbed(1)
    assert [digest(p) == expected for p in points] == [True] * 3
