"""`resources.nodes: 2-3` on the real cluster: it starts with what SLURM gives, and goes on with what is left."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from cluster import Cluster
from harness import Run, submit

STEPS = 60
BATCH = 9
"""Three samples for each of the three ranks of the whole range."""


def ranged(cluster: Cluster, tmp_path: Path, **job: Any) -> Run:
    """One rank a node; the ledger notes every sample of the epoch."""
    params = {"rows": STEPS * BATCH, "step_s": job.pop("step_s", 0.3), "seen": str(tmp_path / "seen")}
    hosts = {"nodes": "2-3", "tasks_per_node": 1, **job.pop("resources", {})}
    return submit(tmp_path, cluster.env, 3, task="ledger:Ledger", params=params, resources=hosts, **job)


def four_idle(cluster: Cluster) -> None:
    """Wait for the hosts that earlier tests have killed."""
    idle = ["sinfo", "-h", "-N", "-p", "batch", "-t", "idle", "-o", "%N"]
    cluster.wait(lambda: len(cluster.run(idle).stdout.split()) == 4, "four idle hosts")


def whole_epoch(run: Run, tmp_path: Path) -> Counter[int]:
    """The run's end; every sample was met, and as there were as many steps as without a fault, once in those that count."""
    outcome = run.wait_end()
    assert outcome["state"] == "completed", outcome
    assert outcome["step"] == STEPS
    met = Counter(int(line.split()[1]) for file in tmp_path.glob("seen.*") for line in file.read_text().splitlines())
    assert set(met) == set(range(STEPS * BATCH))
    run.wait_no_process()
    return met


def test_a_host_that_dies_leaves_a_smaller_round(clean: Cluster, tmp_path: Path) -> None:
    """No spare, no requeue: the next round has two ranks, the same steps and the same samples; SLURM drops the host in its time."""
    clean.set(SlurmdTimeout=10)
    four_idle(clean)
    run = ranged(clean, tmp_path, checkpoint={"interval_steps": 5})
    run.wait_step(12)
    dead = run.state()["nodes"][1]

    clean.kill(dead)

    met = whole_epoch(run, tmp_path)
    first, second = run.told("round_started")
    assert [len(e["ranks"]) for e in (first, second)] == [3, 2]
    assert dead not in {r["host"] for r in second["ranks"]}
    assert len(run.told("attempt_started")) == 1
    (warning,) = (e["text"] for e in run.told("warning") if "training goes on with" in e["text"])
    assert warning.startswith("training goes on with 2 nodes of 3: the samples of each step stay the same")
    again = sum(met.values()) - len(met)
    assert again <= 11 * BATCH, (
        "steps since the checkpoint, those of one that was being committed, and one that was under way"
    )


def test_it_starts_with_what_is_free(clean: Cluster, tmp_path: Path) -> None:
    """Two of four hosts are busy: the job starts on the other two, with the steps and samples of three ranks."""
    busy = clean.sbatch("-N", 2, "--exclusive", wrap="srun sleep 600")
    clean.wait_job(busy, "RUNNING")

    run = ranged(clean, tmp_path, slurm={"exclusive": True})

    met = whole_epoch(run, tmp_path)
    assert [len(e["ranks"]) for e in run.told("round_started")] == [2]
    assert set(met.values()) == {1}


def test_a_lost_host_is_replaced_from_outside(clean: Cluster, tmp_path: Path) -> None:
    """`resources.replace`: a job of one node takes its place behind a checkpoint. When that is cancelled, the run goes on without it.

    No step is lost then, and nothing of that name is left at the end.
    """
    clean.set(SlurmdTimeout=10)
    four_idle(clean)
    run = ranged(clean, tmp_path, step_s=1.0, resources={"replace": True}, checkpoint={"interval_steps": 5})
    run.wait_step(6)
    dead = run.state()["nodes"][1]

    clean.kill(dead)

    (asked,) = run.wait("a job", lambda: run.told("replacement_asked"))
    third = run.wait("a third round", lambda: [e for e in run.told("round_started") if e["round"] == 2])[0]
    hosts = {r["host"] for r in third["ranks"]}
    assert len(hosts) == 3
    assert dead not in hosts
    run.wait("steps of that round", lambda: run.told("saved", round=2))
    clean.run(["scancel", asked["job_id"]])

    whole_epoch(run, tmp_path)
    assert [len(e["ranks"]) for e in run.told("round_started")][:4] == [3, 2, 3, 2]
    (stopped,) = run.told("stopped")
    assert (stopped["round"], stopped["lost_steps"]) == (2, 0)
    assert len(run.told("attempt_started")) == 1
    name = f"{run.paths.id}+node"
    clean.wait(lambda: not clean.run(["squeue", "-h", f"--name={name}"]).stdout.strip(), "no job left")
