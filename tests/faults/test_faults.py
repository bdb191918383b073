"""One fault a test on the real cluster: the end equals, bit for bit, that of a run that nothing happened to."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import inflict
import pytest
from cluster import Cluster
from harness import Run, digest, submit

Undisturbed = Callable[[int], str]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """The digest of the end of an undisturbed run of that many ranks, on this machine, computed once each."""
    known: dict[int, str] = {}

    def of(world: int) -> str:
        if world not in known:
            directory = tmp_path_factory.mktemp(f"undisturbed-{world}")
            run = submit(directory, {}, world, backend="local", params={"step_s": 0.0}, resources={"cpus_per_task": 1})
            outcome = run.wait_end()
            assert outcome["state"] == "completed", outcome
            known[world] = digest(run)
        return known[world]

    return of


@pytest.fixture
def clean(cluster: Cluster) -> Cluster:
    """The cluster, with no job left before and after."""
    cluster.cancel_all()
    yield cluster
    cluster.cancel_all()


def ends_the_same(run: Run, world: int, undisturbed: Undisturbed) -> None:
    """Completed, equal to the undisturbed run, and no process left."""
    outcome = run.wait_end()
    assert outcome["state"] == "completed", (outcome, run.history()[-10:])
    assert digest(run) == undisturbed(world)
    run.wait_no_process()


def start(cluster: Cluster, tmp_path: Path, world: int = 3, **job: object) -> Run:
    """A run that has one checkpoint and goes on."""
    run = submit(tmp_path, cluster.env, world, **job)
    run.wait_saved(1)
    run.wait_step(13)
    return run


WORKER_FAULTS = {
    "killed": lambda run: inflict.signal_rank(run, 1, signal.SIGKILL),
    "rank 0 killed": lambda run: inflict.signal_rank(run, 0, signal.SIGKILL),
    "segfault": lambda run: inflict.signal_rank(run, 1, signal.SIGSEGV),
    "frozen": lambda run: inflict.signal_rank(run, 1, signal.SIGSTOP),
    "os._exit": lambda run: (run.paths.root / "fault-exit-1").touch(),
    "exception": lambda run: (run.paths.root / "fault-exception-1").touch(),
    "store killed": inflict.kill_store,
}


@pytest.mark.parametrize("fault", WORKER_FAULTS)
def test_a_fault_inside_the_allocation(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, fault: str) -> None:
    """What breaks a worker or the store costs a round, not the allocation, and nothing of the result."""
    run = start(clean, tmp_path)

    WORKER_FAULTS[fault](run)

    ends_the_same(run, 3, undisturbed)
    assert len(run.told("round_started")) == 2
    assert len(run.told("attempt_started")) == 1


@pytest.mark.parametrize("world", [1, 2, 4, 5, 8])
def test_faults_at_other_world_sizes(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, world: int) -> None:
    """A killed worker, a preemption and a killed leader in one run: the same end at every world size."""
    run = start(clean, tmp_path, world, params={"epochs": 12})
    inflict.signal_rank(run, world - 1, signal.SIGKILL)
    run.wait("a second round", lambda: len(run.told("first_step")) >= 2)
    inflict.preempt(clean, run.state()["nodes"])
    run.wait("a second attempt", lambda: run.told("first_step", attempt=1))
    inflict.kill_agent(run, 0)

    outcome = run.wait_end()

    assert outcome["state"] == "completed", outcome
    assert len(run.told("attempt_started")) == 3
    run.wait_no_process()
    reference = submit(tmp_path / "reference", {}, world, backend="local", params={"step_s": 0.0, "epochs": 12})
    assert reference.wait_end()["state"] == "completed"
    assert digest(run) == digest(reference)


@pytest.mark.parametrize(
    "settings",
    [{"GraceTime": 20}, {"GraceTime": 0}, {"GraceTime": 20, "send_user_signal": "yes"}, {"PreemptMode": "CANCEL"}],
    ids=["grace 20", "grace 0", "user signal", "cancel"],
)
def test_preempted(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, settings: dict[str, object]) -> None:
    """A preempted run saves at an agreed step, comes back by itself and ends the same."""
    clean.set(**settings)
    run = start(clean, tmp_path)

    inflict.preempt(clean, run.state()["nodes"])

    ends_the_same(run, 3, undisturbed)
    assert len(run.told("attempt_started")) == 2
    if settings.get("GraceTime") != 0:
        (stopped,) = run.told("stopped")
        assert stopped["lost_steps"] == 0


@pytest.mark.parametrize("node", [0, 2], ids=["leader", "agent"])
def test_a_killed_agent(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, node: int) -> None:
    """SIGKILL of the leader or of another agent: the run comes back and ends the same."""
    run = start(clean, tmp_path)

    inflict.kill_agent(run, node)

    ends_the_same(run, 3, undisturbed)


def test_a_host_killed_with_a_spare(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """A spare takes a dead host's place inside the allocation, long before SLURM notices."""
    run = start(clean, tmp_path, resources={"spare_nodes": 1})
    dead = run.state()["nodes"][1]
    began = time.time()

    clean.kill(dead)

    second = run.wait("a second round", lambda: [e for e in run.told("round_started") if e.get("round") == 1])[0]
    assert second["t"] - began < 15
    assert dead not in {r["host"] for r in second["ranks"]}
    ends_the_same(run, 3, undisturbed)
    assert len(run.told("attempt_started")) == 1


@pytest.mark.parametrize("which", [0, 1], ids=["first host", "another host"])
def test_a_host_killed(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, which: int) -> None:
    """A host dies without a spare: the run comes back on others and ends the same."""
    clean.set(SlurmdTimeout=10)
    run = start(clean, tmp_path)

    clean.kill(run.state()["nodes"][which])

    ends_the_same(run, 3, undisturbed)


def test_a_host_cut_off(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """A host loses its network while its processes live on: they commit nothing, and the run ends the same."""
    clean.set(SlurmdTimeout=10)
    run = start(clean, tmp_path)
    cut = run.state()["nodes"][1]

    clean.cut(cut)
    run.wait("a new start", lambda: len(run.told("round_started")) >= 2)
    clean.heal(cut)

    ends_the_same(run, 3, undisturbed)


@pytest.mark.parametrize("daemon", ["slurmctld", "slurmd"])
def test_a_daemon_restarted(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, daemon: str) -> None:
    """SLURM's own daemons die and come back: the run does not notice."""
    run = start(clean, tmp_path)

    clean.restart(daemon if daemon == "slurmctld" else run.state()["nodes"][1])

    ends_the_same(run, 3, undisturbed)
    assert len(run.told("round_started")) == 1


@pytest.mark.parametrize("damage", [inflict.flip_byte, inflict.truncate])
def test_the_newest_checkpoint_is_damaged(
    clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, damage: Callable[[Path], None]
) -> None:
    """A damaged checkpoint is found by its hash; the one before it is used."""
    run = start(clean, tmp_path)
    saved = run.wait_saved(2)
    for path in inflict.newest_checkpoint(run).glob("*.pt"):
        damage(path)

    inflict.signal_rank(run, 1, signal.SIGKILL)

    ends_the_same(run, 3, undisturbed)
    assert run.told("checkpoint_damaged")
    second = run.told("round_started")[1]
    assert second["resume_step"] <= saved[0]["step"]


def test_the_disk_is_full_during_a_save(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """Training goes on while nothing can be saved, says so, and saves again when there is room."""
    run = submit(tmp_path, clean.env, 3, params={"step_s": 0.08})
    with inflict.small_disk(run.paths.checkpoints) as fill:
        run.wait_saved(1)
        fill()
        run.wait("a failed save", lambda: run.told("save_failed"))
        (run.paths.checkpoints / "filler").unlink()
        failed = run.told("save_failed")[-1]["t"]
        run.wait("a later save", lambda: [e for e in run.told("saved") if e["t"] > failed])
        ends_the_same(run, 3, undisturbed)
    assert len(run.told("round_started")) == 1


def test_the_time_limit(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """At the time limit the run saves, is requeued and goes on."""
    run = submit(
        tmp_path, clean.env, 3, params={"step_s": 0.5}, resources={"timeout_min": 1}, restart={"signal_lead_s": 30}
    )

    ends_the_same(run, 3, undisturbed)

    attempts = run.told("attempt_started")
    assert len(attempts) >= 2
    assert "time_limit" in {e["cause"] for e in run.told("stop_requested")}


@pytest.mark.parametrize("moment", ["start-up", "training", "a save"])
def test_cancelled_stays_cancelled(clean: Cluster, tmp_path: Path, moment: str) -> None:
    """scancel ends the run as cancelled; it does not come back and no process is left."""
    run = submit(tmp_path, clean.env, 3)
    if moment == "training":
        run.wait_saved(1)
    elif moment == "a save":
        run.wait("a save", lambda: run.told("save_started") or run.told("saved"))
    else:
        run.wait("an attempt", lambda: run.told("attempt_started"))
    job = run.told("submitted")[0]["job_id"]

    clean.run(["scancel", job])

    outcome = run.wait_end()
    assert outcome["state"] == "cancelled", outcome
    run.wait_no_process()
    clean.wait(lambda: clean.job(job).get("JobState", "") in ("CANCELLED", ""), "the job's end")
    time.sleep(5)
    assert clean.job(job).get("JobState", "") in ("CANCELLED", "")
    assert len(run.told("attempt_started")) == 1
