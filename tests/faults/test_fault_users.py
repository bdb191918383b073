"""Everything as an ordinary user: no root on the login host, none on the nodes, none towards SLURM."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import inflict
import psutil
import pytest
from cluster import Cluster
from harness import ONE_HOST, Run, digest, job_text, seldom, until_there
from user import User, a_user, slurmds

Undisturbed = Callable[[int], str]


@pytest.fixture(scope="module")
def user(cluster: Cluster) -> Iterator[User]:
    """Somebody without privileges."""
    with a_user(cluster) as somebody:
        yield somebody


def submitted(user: User, name: str, world: int = 3, **job: Any) -> Run:
    """His run, just submitted."""
    path = user.home / f"{name}.yaml"
    path.write_text(job_text(world, name=name, code={"dir": str(user.home / "job")}, **{"resources": ONE_HOST, **job}))
    user.launcher("submit", path)
    (root,) = (user.home / "runs").glob(f"{name}-*")
    return Run(root)


def submit(user: User, name: str, **job: Any) -> Run:
    """His run, once it has a checkpoint."""
    run = submitted(user, name, **job)
    run.wait_saved(1)
    run.wait_step(13)
    return run


def owners(run: Run) -> set[int]:
    """Whose processes work on the run."""
    found = set()
    for process in run.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            found.add(process.uids().real)
    return found


def test_a_user_is_preempted_and_comes_back(clean: Cluster, user: User, undisturbed: Undisturbed) -> None:
    """Requeueing from inside, verifying it, pulling the start forward: SLURM lets an ordinary user do all of it."""
    run = submit(user, "mine")
    assert owners(run) == {user.uid}

    inflict.preempt(clean, run.state()["nodes"])

    outcome = run.wait_end()
    assert outcome["state"] == "completed", outcome
    assert digest(run) == undisturbed(3)
    run.wait_no_process()
    (stopped,) = run.told("stopped")
    assert stopped["lost_steps"] == 0
    second = run.told("attempt_started")[1]
    assert second["t"] - run.told("requeued")[0]["t"] < 60, "the start was not pulled forward"
    assert {p.stat().st_uid for p in run.paths.root.rglob("*") if not p.is_symlink()} == {user.uid}
    assert run.paths.root.stat().st_mode & 0o777 == 0o700
    assert not [p for p in run.paths.root.rglob("*") if not p.is_symlink() and p.stat().st_mode & 0o022]


@pytest.fixture
def local(cluster: Cluster, user: User) -> Iterator[dict[str, Path]]:
    """The user's folder ``local``, which each host has for itself, and where the login host finds what is in it.

    On the disk: torch for CUDA has 5 GB, which archive and copy of every host would take of this machine's memory.
    """
    shown = user.home / "local"
    rooms = {host: user.home / f"local-{host}" for host in slurmds(cluster)}
    with contextlib.ExitStack() as stack:
        for folder in (shown, *rooms.values()):
            folder.mkdir()
            shutil.chown(folder, user.uid)
            stack.callback(shutil.rmtree, folder)
        for host, pid in slurmds(cluster).items():
            enter = ["nsenter", f"--target={pid}", "--mount", "--"]
            subprocess.run([*enter, "mount", "--bind", str(rooms[host]), str(shown)], check=True)
            stack.callback(subprocess.run, [*enter, "umount", "-l", str(shown)], check=True)
        yield rooms


def test_a_user_stages_the_environment(
    clean: Cluster, user: User, local: dict[str, Path], undisturbed: Undisturbed
) -> None:
    """Python starts from a copy on each node, a killed agent's again; the end is the same, and no node keeps a copy to start from."""
    run = submit(user, "staged", world=2, resources={}, environment={"stage": str(user.home / "local")})
    copies = {host: [path.name for path in folder.iterdir()] for host, folder in local.items()}
    hosts = run.state()["nodes"]

    inflict.kill_agent(run, 1)

    outcome = run.wait_end()
    assert outcome["state"] == "completed", outcome
    assert digest(run) == undisturbed(2)
    assert len(run.told("agent_revived")) == len(run.told("attempt_started")) == 1
    assert [event["text"] for event in run.told("warning")] == []
    job = run.job_id
    assert all([name.startswith(f"launcher-{user.uid}-{job}-") for name in copies[host]] == [True] for host in hosts)
    run.wait_no_process()
    # An agent removes gigabytes for some seconds at most: the next staged job removes what is left, and nobody starts from it.
    assert [
        path for folder in local.values() for path in folder.iterdir() if (path / "ready").exists() or path.is_file()
    ] == []


@pytest.mark.long
def test_a_user_loses_an_agent(clean: Cluster, user: User, undisturbed: Undisturbed) -> None:
    """A killed agent without a spare: started again in place, as the user."""
    run = submit(user, "agent", resources={})

    inflict.kill_agent(run, 1)

    outcome = run.wait_end()
    assert outcome["state"] == "completed", outcome
    assert digest(run) == undisturbed(3)
    assert len(run.told("agent_revived")) == len(run.told("attempt_started")) == 1
    run.wait_no_process()


def test_an_administrator_cancels_a_users_job(clean: Cluster, user: User) -> None:
    """scancel by root of somebody else's job: saved at an agreed step, cancelled, gone."""
    run = submit(user, "theirs")

    clean.run(["scancel", run.job_id])

    outcome = run.wait_end()
    assert outcome["state"] == "cancelled", outcome
    (stopped,) = run.told("stopped")
    assert stopped["lost_steps"] == 0
    run.wait_no_process()
    said = json.loads(user.launcher("status", run.paths.id, "--json"))
    assert said["state"] == "cancelled"


def held(user: User, moment: str) -> Run:
    """His run in training, in a save that takes 3 s, or while its workers are started."""
    if moment == "start-up":
        go = user.home / "go"
        run = submitted(user, "starting", params={"step_s": 0.5}, environment={"setup": [until_there(go)]})
        (run.paths.root / "slow-start").write_text("60")
        go.touch()
        run.wait("a round", lambda: run.told("round_started"))
        return run
    run = submit(user, moment.replace(" ", "-"), params={"step_s": 0.5})
    if moment == "a save":
        (run.paths.root / "slow-save").write_text("3")
        before = len(run.told("save_started"))
        run.wait("a save", lambda: len(run.told("save_started")) > before)
    return run


@pytest.mark.parametrize("moment", seldom(["training", "start-up", "a save"], "start-up", "a save"))
def test_a_user_cancels_by_scancel(clean: Cluster, user: User, moment: str) -> None:
    """A plain scancel of one's own job, without root's rights: saved where there is anything, cancelled, never back."""
    clean.set(KillWait=30)  # SLURM's default: two saves of 3 s
    run = held(user, moment)

    user.run("scancel", run.job_id)

    outcome = run.wait_end()
    assert outcome["state"] == "cancelled", outcome
    if moment == "start-up":
        assert not run.told("first_step")
    else:
        assert [e["lost_steps"] for e in run.told("stopped")] == [0]
    clean.wait(lambda: run.paths.id not in clean.run(["squeue", "-h", "-o", "%j"]).stdout.split(), "the job's end")
    run.wait_no_process()
    assert len(run.told("attempt_started")) == 1
    assert json.loads(user.launcher("status", run.paths.id, "--json"))["state"] == "cancelled"


@pytest.mark.long
def test_a_user_cancels_with_saving_and_goes_on(clean: Cluster, user: User, undisturbed: Undisturbed) -> None:
    """`cancel --save` ends cancelled with nothing lost; `resubmit` goes on from exactly there to the same end."""
    run = submit(user, "later")

    user.launcher("cancel", run.paths.id, "--save")

    outcome = run.wait_end()
    assert outcome["state"] == "cancelled", outcome
    (stopped,) = run.told("stopped")
    assert stopped["lost_steps"] == 0
    run.wait_no_process()
    clean.wait(lambda: clean.job(run.job_id).get("JobState", "") not in ("RUNNING", "COMPLETING"), "the job's end")
    user.launcher("resubmit", run.paths.id)
    run.wait("the end of the second attempt", lambda: (o := run.outcome()) and o["state"] == "completed")
    assert run.told("round_started")[1]["resume_step"] == stopped["step"]
    assert digest(run) == undisturbed(3)
    run.wait_no_process()
