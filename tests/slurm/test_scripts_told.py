"""Plain scripts on the real cluster and the signals that SLURM sends to every process of a step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import inflict
import pytest
from cluster import Cluster
from harness import Run, submit

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture
def clean(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, with no job left before and after."""
    cluster.cancel_all()
    yield cluster
    cluster.cancel_all()


def start(cluster: Cluster, folder: Path, *args: str, **job: Any) -> Run:
    """Two ranks, on two hosts if nothing else is said, both up, and the leader's picture names their hosts."""
    run = submit(
        folder, cluster.env, 2,
        **{"task": None, "script": "told_to_stop.py", "args": list(args), "params": {}, "code": {"dir": str(SCRIPTS)},
           "checkpoint": {"enabled": False, "interval_steps": None}, **job},
    )  # fmt: skip
    run.wait("both ranks", lambda: all((run.paths.root / f"up-{rank}").exists() for rank in range(2)))
    run.wait("their hosts", lambda: run.state().get("nodes"))
    return run


def told(run: Run) -> list[str]:
    """What the ranks heard."""
    return [path.read_text() for path in sorted(run.paths.root.glob("told-*"))]


def notes(run: Run) -> tuple[set[str], list[float | None]]:
    """Why each rank was stopped, and how many seconds it had when it looked."""
    found = [json.loads(path.read_text()) for path in sorted(run.paths.root.glob("note-*"))]
    return {cause for cause, _ in found}, [left_s for _, left_s in found]


def came_back(run: Run) -> None:
    """Stopped, not failed, and completed by the second attempt."""
    outcome = run.wait_end()
    assert outcome["state"] == "completed", outcome
    assert len(run.told("attempt_started")) == 2
    assert not run.told("worker_failed")
    run.wait_no_process()


@pytest.mark.parametrize(
    "args", [pytest.param([], marks=pytest.mark.long), ["--bare"]], ids=["handles TERM", "handles nothing"]
)
def test_usr2_kills_no_script(clean: Cluster, tmp_path: Path, args: list[str]) -> None:
    """A preemption announced by USR2 to every process (send_user_signal): each rank then hears TERM, once."""
    clean.set(GraceTime=20, send_user_signal="yes")
    run = start(clean, tmp_path, *args)

    inflict.preempt(clean, run.state()["nodes"])

    came_back(run)
    assert told(run) == ([] if args else ["SIGTERM\n", "SIGTERM\n"])
    assert {e["name"] for e in run.told("signal", attempt=0)} >= {"USR2"}
    if not args:  # the grace and KillWait (30 s), less what the requeue needs
        why, left_s = notes(run)
        assert (why, [20 < (s or 0) < 50 for s in left_s]) == ({"preempted"}, [True, True])


@pytest.mark.long
@pytest.mark.parametrize("args", [[], ["--bare"]], ids=["handles TERM", "handles nothing"])
def test_the_time_limit_of_a_script(clean: Cluster, tmp_path: Path, args: list[str]) -> None:
    """--signal=USR2@N reaches every process; the scripts hear TERM before the limit, and the next attempt goes on."""
    run = start(clean, tmp_path, *args, resources={"timeout_min": 2}, restart={"signal_lead_s": 30},
                distributed={"init_timeout_min": 1.5})  # fmt: skip

    came_back(run)
    assert told(run) == ([] if args else ["SIGTERM\n", "SIGTERM\n"])
    assert {e["cause"] for e in run.told("stop_requested")} == {"time_limit"}
    if not args:
        why, left_s = notes(run)
        assert (why, [10 < (s or 0) < 30 for s in left_s]) == ({"time_limit"}, [True, True])


@pytest.mark.parametrize("usr2", ["no", pytest.param("yes", marks=pytest.mark.long)], ids=["by TERM", "by USR2"])
def test_a_script_that_saves_on_usr2_is_preempted(clean: Cluster, tmp_path: Path, usr2: str) -> None:
    """SLURM sends TERM alone, or USR2 alone: its handler for USR2 is called once, it leaves with 0, and the run comes back."""
    clean.set(GraceTime=20, send_user_signal=usr2)
    run = start(clean, tmp_path, "--usr2")

    inflict.preempt(clean, run.state()["nodes"])

    came_back(run)
    assert told(run) == ["SIGUSR2\n", "SIGUSR2\n"]


@pytest.mark.long
def test_the_time_limit_of_a_script_that_saves_on_usr2(clean: Cluster, tmp_path: Path) -> None:
    """It saves and leaves with 0 as soon as SLURM announces the limit: it has not completed, and nobody waits for the limit."""
    run = start(clean, tmp_path, "--usr2", resources={"timeout_min": 2}, restart={"signal_lead_s": 30},
                distributed={"init_timeout_min": 1.5})  # fmt: skip

    came_back(run)
    assert told(run) == ["SIGUSR2\n", "SIGUSR2\n"]
    assert {e["cause"] for e in run.told("stop_requested")} == {"time_limit"}


def test_usr2_by_hand_changes_nothing(clean: Cluster, tmp_path: Path) -> None:
    """`scancel --signal=USR2`: the script has no handler and lives on."""
    run = start(clean, tmp_path, resources={"nodes": 1, "tasks_per_node": 2})

    clean.run(["scancel", "--signal=USR2", run.job_id])
    run.wait("the signal", lambda: run.told("signal", meaning="nothing"))
    (run.paths.root / "enough").touch()

    outcome = run.wait_end()
    assert outcome["state"] == "completed", outcome
    assert len(run.told("round_started")) == 1
    assert told(run) == []


def test_term_by_hand_ends_a_script_for_good(clean: Cluster, tmp_path: Path) -> None:
    """`scancel --signal=TERM` reaches every process of the step: each rank hears it once, the run ends cancelled."""
    run = start(clean, tmp_path, resources={"nodes": 1, "tasks_per_node": 2})

    clean.run(["scancel", "--signal=TERM", run.job_id])

    outcome = run.wait_end()
    assert outcome["state"] == "cancelled", outcome
    assert told(run) == ["SIGTERM\n", "SIGTERM\n"]
    assert notes(run) == ({"terminated"}, [None, None])
    run.wait_no_process()
