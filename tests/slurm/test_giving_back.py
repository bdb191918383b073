"""A run's job is given back on the real cluster by what leader and batch script use; only the leader's training is left out."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cluster import ROOT, Cluster
from harness import Run

from launcher.run.spec import RunSpec, SiteSpec, Work
from launcher.submission.plan import around_srun

LEADER = """
import os, signal, sys, time
from pathlib import Path
from launcher.run import event_lines, events
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.run.state import write_outcome
from launcher.node.checkpoints import claims
from launcher.node.allocation.slurm_allocation import SlurmAllocation
from launcher.slurm import later_jobs

signal.signal(signal.SIGTERM, lambda *_: None)
paths = RunPaths(Path(sys.argv[1]))
a = SlurmAllocation(RunSpec.read(paths.spec), paths)

def wait(name):
    while not (paths.root / name).exists():
        time.sleep(0.1)

def tell(type_, **values):
    line = {"t": time.time(), "type": type_, "attempt": attempt, **values}
    event_lines.append(paths.events, events.parse_event(line, []))

def told(done, **more):
    tell("requeued", how=done.how, job_id=done.job_id, seconds=0.1, delay_s=0.0, **more)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

if os.environ["SLURM_NODEID"] != "0":
    wait(f"leave-{a.restart_count}")
    sys.exit()
attempt = claims.claim_attempt(paths, job_id=a.job_id).attempt
tell("attempt_started", job_id=a.job_id, restart_count=a.restart_count, host=os.environ["SLURM_JOB_NODELIST"])
if attempt == 0:
    BODY
else:
    (paths.root / f"leave-{a.restart_count}").touch()
    write_outcome(paths.outcome, {"state": "completed", "reason": "Done.", "exit_code": 0, "step": 1, "t": time.time()})
"""


def give_back(cluster: Cluster, tmp_path: Path, body: str, *, nodes: int = 1, requeue: bool = True) -> Run:
    """A run whose first leader does ``body`` and whose second one completes it."""
    root = tmp_path / "run"
    run = Run(root)
    run.paths.submitit.mkdir(parents=True)
    spec = RunSpec(
        id="run", name="run", run_dir=str(root), work=Work(kind="task", target="m:C"), batch="slurm", nodes=nodes,
        tasks_per_node=1, timeout_min=5, backend="gloo", port_range=[20000, 20031],
        site=SiteSpec(requeue_allowed=requeue),
    )  # fmt: skip
    spec.write(run.paths.spec)
    program = tmp_path / "leader.py"
    program.write_text(LEADER.replace("BODY", body.replace("\n", "\n    ")))
    end = "\n".join(around_srun.teardown(shlex.quote(str(root)), str(ROOT), sys.executable))
    run.paths.sbatch.write_text(
        f"#!/bin/bash\n#SBATCH --requeue --no-kill --open-mode=append --output={root}/out --nodes={nodes} --job-name=run\n"
        f"export PYTHONPATH={ROOT}\ntrap : TERM USR2\n"
        f"srun --kill-on-bad-exit=0 --wait=0 --no-kill {sys.executable} {program} {root}\n{end}\n"
    )
    job = cluster.sbatch(run.paths.sbatch)
    (run.paths.submitit / f"{job}_submitted.pkl").touch()
    run.paths.submission.write_text(f'{{"job_id": "{job}"}}')
    return run


def lives(run: Run) -> list[dict[str, Any]]:
    """The attempts, once the run has ended."""
    assert run.wait_end()["state"] == "completed"
    return run.told("attempt_started")


KILLED = {
    "before it asks": "die()",
    "after it asked": "done = a.hand_back(exclude=(), delay_s=0.0); die()",
    "after it told": "told(a.hand_back(exclude=(), delay_s=0.0)); die()",
    "at its last act": "told(a.hand_back(exclude=(), delay_s=0.0)); a.pull_forward(); die()",
}


@pytest.mark.parametrize("moment", KILLED)
def test_a_leader_killed_while_it_hands_back_comes_back_once(cluster: Cluster, tmp_path: Path, moment: str) -> None:
    """kill -9 at each step of a requeue: the batch script sees to the rest, and the same job runs once more."""
    run = give_back(cluster, tmp_path, KILLED[moment])

    first, second = lives(run)

    assert (second["job_id"], second["restart_count"]) == (first["job_id"], 1)


CONTINUED = {
    "told": "told(a.hand_back(exclude=(), delay_s=0.0))",
    "killed before it told": "a.hand_back(exclude=(), delay_s=0.0); die()",
    "killed before submitit's file was there": (
        "later_jobs.submit_continuation(str(paths.sbatch), a.job_id, name='run', environ=os.environ); die()"
    ),
}


@pytest.mark.parametrize("moment", CONTINUED)
def test_where_requeueing_is_forbidden_one_other_job_follows(cluster: Cluster, tmp_path: Path, moment: str) -> None:
    """The leader submits a continuation and dies on the way: the batch script finds that one, and submits no second."""
    run = give_back(cluster, tmp_path, CONTINUED[moment], requeue=False)

    first, second = lives(run)

    assert (first["restart_count"], second["restart_count"]) == (0, 0)
    assert second["job_id"] != first["job_id"]
    assert (run.paths.submitit / f"{second['job_id']}_submitted.pkl").exists()
    cluster.wait(lambda: not cluster.run(["squeue", "-h", "-n", "run", "-t", "PD,R,CG"]).stdout, "no third job")
    assert len(run.told("attempt_started")) == 2


def test_scancel_of_the_old_job_takes_its_continuation_along(cluster: Cluster, tmp_path: Path) -> None:
    """Cancelled between the submission of the continuation and the old job's end: the run is over."""
    cluster.set(KillWait=60)  # the batch script has its last word on a busy machine, too
    run = give_back(cluster, tmp_path, CONTINUED["told"] + "; wait('cancelled')", requeue=False)
    (handed,) = run.wait("the continuation", lambda: run.told("requeued"))

    cluster.run(["scancel", run.job_id])
    (run.paths.root / "cancelled").touch()

    assert run.wait_end()["state"] == "cancelled"
    cluster.wait(lambda: cluster.job(handed["job_id"]).get("JobState", "CANCELLED") == "CANCELLED", "no continuation")
    assert len(run.told("attempt_started")) == 1


LET_GO = """
wait("dead")
(paths.root / "leave-0").touch()
dead = tuple((paths.root / "dead").read_text().split())
gone = a.let_go(dead)
told(a.hand_back(exclude=dead, delay_s=0.0), let_go=list(gone))
a.pull_forward()
"""


def test_a_dead_host_is_not_waited_for(cluster: Cluster, tmp_path: Path) -> None:
    """With SLURM's default SlurmdTimeout of 300 s a run that lost a host is back long before, on others, and accounting goes on.

    SLURM's own delay of 121 s is counted in: it comes where the job's last process stands still for some seconds, and where an update
    of a job that has lost a node would block the accounting.
    """
    cluster.set(SlurmdTimeout=300, KillWait=30)
    run = give_back(cluster, tmp_path, LET_GO, nodes=3)
    (first,) = run.wait("the leader", lambda: run.told("attempt_started"))
    dead = cluster.run(["scontrol", "show", "hostnames", first["host"]]).stdout.split()[1]
    cluster.kill(dead)
    began = time.time()
    (run.paths.root / "dead").write_text(dead)

    _, second = lives(run)

    hosts = cluster.run(["scontrol", "show", "hostnames", second["host"]]).stdout.split()
    assert dead not in hosts
    assert len(hosts) == 3
    assert second["t"] - began < 240
    cluster.wait(lambda: "DBD Agent queue size: 0\n" in cluster.run(["sdiag"]).stdout, "all messages at slurmdbd")
    assert not list(Path().glob("slurm_job_*")) + list(tmp_path.rglob("slurm_job_*"))
