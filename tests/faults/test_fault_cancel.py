"""Cancelling on the real cluster: whoever does it, however and whenever, the run ends cancelled and never comes back."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import inflict
import pytest
from cluster import Cluster
from harness import ONE_HOST, Run, digest, in_evaluation, seldom, start, submit

Undisturbed = Callable[[int], str]
STAYS_S = 120.0


@pytest.fixture(scope="module", autouse=True)
def kill_wait(cluster: Cluster) -> Iterator[None]:
    """SLURM's default: what users have."""
    cluster.set(KillWait=30)
    yield
    cluster.restore({})


def launcher(cluster: Cluster, run: Run, *words: str) -> str:
    """What one of the launcher's verbs prints about the run."""
    env = {**os.environ, **cluster.env, "LAUNCHER_RUNS_DIR": str(run.paths.root.parent)}
    env["XDG_STATE_HOME"] = str(run.paths.root.parent.parent / "state")
    command = [sys.executable, "-m", "launcher", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def queued(cluster: Cluster, run: Run) -> bool:
    """Whether SLURM holds a job of the run that runs or will run."""
    return run.paths.id in cluster.run(["squeue", "-h", "-o", "%j"]).stdout.split()


def is_gone(cluster: Cluster, run: Run, *, outcome: str = "cancelled", lost: int | None = 0) -> None:
    """Ended as cancelled, so many steps lost, out of the queue, and no process left on any host."""
    ended = run.wait_end()
    assert ended["state"] == outcome, (ended, run.history()[-10:])
    if lost is not None:
        assert [e["lost_steps"] for e in run.told("stopped")] == [lost]
    cluster.wait(lambda: not queued(cluster, run), "the job's end")
    run.wait_no_process()


def in_training(cluster: Cluster, folder: Path, **resources: int) -> Run:
    """A run between two saves, with a minute of work left; on one host if nothing else is said."""
    return start(cluster, folder, resources=resources or ONE_HOST, params={"step_s": 0.5})


def on_three_hosts(cluster: Cluster, folder: Path) -> Run:
    """The same run over three hosts."""
    return in_training(cluster, folder, nodes=3, tasks_per_node=1)


def in_a_save(cluster: Cluster, folder: Path) -> Run:
    """A run whose save takes 3 s and has just begun."""
    run = start(cluster, folder, resources=ONE_HOST, params={"step_s": 0.5})
    (run.paths.root / "slow-save").write_text("3")
    before = len(run.told("save_started"))
    run.wait("a save", lambda: len(run.told("save_started")) > before)
    return run


def evaluating(cluster: Cluster, folder: Path) -> Run:
    """A run whose evaluation takes 20 s and has just begun."""
    return in_evaluation(cluster, folder, 20)


def in_start_up(cluster: Cluster, folder: Path) -> Run:
    """A run whose workers are being started."""
    run = submit(folder, cluster.env, 3, params={"step_s": 0.5})
    run.wait("a round", lambda: run.told("round_started"))
    return run


def waiting_for_agents(cluster: Cluster, folder: Path) -> Run:
    """A run whose leader waits for an agent that hangs in its setup lines."""
    hold = 'if [ "$SLURM_NODEID" = 1 ]; then sleep 600; fi'
    run = submit(folder, cluster.env, 3, environment={"setup": [hold]})
    run.wait("two nodes", lambda: len(run.told("node_joined")) == 2)
    return run


def in_setup_lines(cluster: Cluster, folder: Path) -> Run:
    """A run none of whose agents has got so far as Python."""
    mark = folder / "here"
    run = submit(folder, cluster.env, 3, environment={"setup": [f"touch {mark}; sleep 600"]})
    run.wait("the setup lines", mark.exists)
    return run


MOMENTS: dict[str, tuple[Callable[[Cluster, Path], Run], int | None]] = {
    "training": (on_three_hosts, 0),
    "a save": (in_a_save, 0),
    "evaluation": (evaluating, 0),
    "start-up": (in_start_up, None),
    "agents join": (waiting_for_agents, None),
    "on one host": (in_training, 0),
}


@pytest.mark.parametrize("moment", seldom(MOMENTS, "evaluation", "agents join", "on one host"))
def test_scancel(clean: Cluster, tmp_path: Path, moment: str) -> None:
    """scancel at any moment: saved at an agreed step where there is one (KillWait 30 s), cancelled, no process left."""
    begin, lost = MOMENTS[moment]
    run = begin(clean, tmp_path)

    clean.run(["scancel", run.job_id])

    is_gone(clean, run, lost=lost)
    assert len(run.told("attempt_started")) == 1


@pytest.mark.long
def test_scancel_before_python_starts(clean: Cluster, tmp_path: Path) -> None:
    """All agents are still in their setup lines: nobody can write an outcome in time, and yet the run is seen as cancelled."""
    run = in_setup_lines(clean, tmp_path)

    clean.run(["scancel", run.job_id])

    clean.wait(lambda: not queued(clean, run), "the job's end")
    run.wait_no_process()
    assert '"state": "cancelled"' in launcher(clean, run, "status", run.paths.id, "--json")


@pytest.mark.parametrize("moment", seldom(["on one host", "start-up", "a save"], "start-up", "a save"))
def test_launcher_cancel(clean: Cluster, tmp_path: Path, moment: str) -> None:
    """`launcher cancel` without --save is scancel, and says that the run is cancelled."""
    begin, lost = MOMENTS[moment]
    run = begin(clean, tmp_path)

    launcher(clean, run, "cancel", run.paths.id)

    is_gone(clean, run, lost=lost)


@pytest.mark.parametrize(
    "moment", seldom(["on one host", "evaluation", "a save", "start-up"], "evaluation", "a save", "start-up")
)
def test_cancel_with_saving(clean: Cluster, tmp_path: Path, moment: str, undisturbed: Undisturbed) -> None:
    """`launcher cancel --save`: an agreed stop, nothing lost, cancelled; `resubmit` goes on from exactly that step."""
    begin, lost = MOMENTS[moment]
    run = begin(clean, tmp_path)

    launcher(clean, run, "cancel", run.paths.id, "--save")

    is_gone(clean, run, lost=lost)
    if moment != "on one host":
        return
    (stopped,) = run.told("stopped")
    launcher(clean, run, "resubmit", run.paths.id, "params.step_s=0.05")
    run.wait("the end", lambda: (o := run.outcome()) and o["state"] == "completed")
    assert run.told("round_started")[1]["resume_step"] == stopped["step"]
    assert digest(run) == undisturbed(3)


@pytest.mark.parametrize("node", [0, 1])
def test_whoever_dies_while_it_saves_and_stops(clean: Cluster, tmp_path: Path, node: int) -> None:
    """The leader, or another node's agent: the wish to end the run outlives it, and no new round begins."""
    run = on_three_hosts(clean, tmp_path)
    (run.paths.root / "slow-save").write_text("15")
    launcher(clean, run, "cancel", run.paths.id, "--save")
    run.wait("the agreed step", lambda: run.told("agreed"))

    inflict.kill_agent(run, node)

    is_gone(clean, run, lost=None)
    assert len(run.told("round_started")) == 1


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--signal=TERM"], marks=pytest.mark.long),
        pytest.param(["--signal=TERM", "--full"], marks=pytest.mark.long),
        pytest.param(["--signal=KILL"], marks=pytest.mark.long),
    ],
    ids=" ".join,
)
def test_other_ways_of_scancel(clean: Cluster, tmp_path: Path, words: list[str]) -> None:
    """TERM sent by hand means the end, too: saved, cancelled, no process left.

    With --full srun hears it as well, and kills the step at once: cancelled all the same, by the batch script.
    --signal=KILL is scancel to SLURM.
    """
    run = in_training(clean, tmp_path)

    clean.run(["scancel", *words, run.job_id])

    is_gone(clean, run, lost=None if "--full" in words else 0)
    assert len(run.told("attempt_started")) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--signal=USR2"],
        ["--signal=USR2", "--full"],
        ["--signal=TERM", "--batch"],
    ],
    ids=" ".join,
)
@pytest.mark.long
def test_a_signal_that_means_nothing(
    clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, words: list[str]
) -> None:
    """SLURM wants nothing of the job: training goes on in the same round, and nothing is lost."""
    run = start(clean, tmp_path, resources=ONE_HOST)

    clean.run(["scancel", *words, run.job_id])

    outcome = run.wait_end()
    assert outcome["state"] == "completed", outcome
    assert digest(run) == undisturbed(3)
    assert len(run.told("round_started")) == 1
    assert not run.told("stopped")


def between_attempts(cluster: Cluster, folder: Path) -> Run:
    """A preempted run that waits for nodes that somebody else has for a while."""
    run = start(cluster, folder, resources=ONE_HOST)
    inflict.preempt(cluster, list(cluster.hosts), seconds=600)
    run.wait("the requeue", lambda: run.told("requeued"))
    cluster.wait(lambda: cluster.job(run.job_id).get("JobState") == "PENDING", "the job in the queue again")
    return run


@pytest.mark.parametrize(
    "how", seldom(["scancel", "launcher cancel", "launcher cancel --save"], "launcher cancel", "launcher cancel --save")
)
def test_cancelled_between_attempts(clean: Cluster, tmp_path: Path, how: str) -> None:
    """The run waits in the queue after a preemption: whoever cancels it then, it is cancelled and nothing starts again."""
    run = between_attempts(clean, tmp_path)

    if how == "scancel":
        clean.run(["scancel", run.job_id])
    else:
        launcher(clean, run, *how.split()[1:], run.paths.id)

    clean.wait(lambda: not queued(clean, run), "the job's end")
    assert '"state": "cancelled"' in launcher(clean, run, "status", run.paths.id, "--json")
    assert len(run.told("attempt_started")) == 1
    run.wait_no_process()


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_cancelled_runs_stay_cancelled(clean: Cluster, tmp_path: Path) -> None:
    """Runs cancelled at every moment are watched for two minutes: none comes back, nothing of them runs."""
    runs: dict[str, Run] = {}

    def none_came_back() -> None:
        for moment, run in runs.items():
            assert not queued(clean, run), moment
            assert len(run.told("attempt_started")) == 1, moment
            assert len(run.told("submitted")) == 1, moment

    for moment, (begin, _) in {**MOMENTS, "between attempts": (between_attempts, None)}.items():
        runs[moment] = run = begin(clean, tmp_path / moment.replace(" ", "-"))
        clean.run(["scancel", run.job_id])
        clean.wait(lambda run=run: not queued(clean, run), "the job's end")
        none_came_back()
    # What holds the hosts for the last of them goes, and nothing else: a run that wanted to come back could.
    clean.run(["scancel", "--partition=high"])
    clean.wait(lambda: not clean.run(["squeue", "-h", "-p", "high"]).stdout.strip(), "free hosts")

    end = time.monotonic() + STAYS_S
    while time.monotonic() < end:
        none_came_back()
        time.sleep(2)

    for moment, run in runs.items():
        assert '"state": "cancelled"' in launcher(clean, run, "status", run.paths.id, "--json"), moment
        assert not run.processes(), moment
