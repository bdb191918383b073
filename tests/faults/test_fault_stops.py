"""Preemption and time limit on the real cluster, at every moment and together with each other and with a cancel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import inflict
import pytest
from cluster import Cluster
from harness import (
    NEW_ATTEMPT,
    ONE_HOST,
    Run,
    cancel_and_save,
    ends_the_same,
    in_evaluation,
    nothing_lost,
    start,
    stays_cancelled,
    submit,
    tells,
    until_there,
)

Undisturbed = Callable[[int], str]


SITES: dict[str, dict[str, object]] = {
    "grace 20": {"GraceTime": 20},
    "grace 0": {"GraceTime": 0},
    "user signal": {"GraceTime": 20, "send_user_signal": "yes"},
    "cancel": {"PreemptMode": "CANCEL"},
    "cancel, grace 0": {"PreemptMode": "CANCEL", "GraceTime": 0},
}


def tells_of_the_stop(run: Run) -> None:
    """The history holds the first attempt's signal, stop, agreement, save, decision and return in the order they came."""
    (stop,), (agreed,) = run.told("stop_requested", attempt=0), run.told("agreed", attempt=0)
    tells(
        run,
        ("signal", {"attempt": 0, "meaning": stop["cause"]}),
        ("stop_requested", {"attempt": 0, "save": True}),
        ("agreed", {"attempt": 0}),
        ("saved", {"attempt": 0, "step": agreed["step"]}),
        ("stopped", {"attempt": 0, "lost_steps": 0}),
        ("round_ended", {"attempt": 0}),
        ("decision", {"attempt": 0, "evidence": stop["cause"], "action": "requeue"}),
        *NEW_ATTEMPT,
    )


LONG = [pytest.param(site, marks=pytest.mark.long) for site in ("grace 20", "cancel, grace 0")]


@pytest.mark.parametrize("site", ["grace 0", "user signal", "cancel", *LONG])
def test_preempted(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, site: str) -> None:
    """A preempted run saves at an agreed step, comes back by itself from exactly there and ends the same."""
    clean.set(**SITES[site])
    # One over three hosts; the others differ in what SLURM says to the leader alone.
    run = start(clean, tmp_path, resources={} if site == "user signal" else ONE_HOST)

    inflict.preempt(clean, run.state()["nodes"])

    ends_the_same(run, 3, undisturbed)
    assert len(run.told("attempt_started")) == 2
    nothing_lost(run)  # without grace there is KillWait, 10 s here
    assert run.told("stop_requested")[0]["cause"] in ("preempted", "preempted_now")
    tells_of_the_stop(run)


def test_preempted_while_it_starts(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """The workers build their model, there is nothing to save yet: it comes back and begins from scratch."""
    go = tmp_path / "go"
    run = submit(tmp_path, clean.env, 3, resources=ONE_HOST, environment={"setup": [until_there(go)]})
    slow = run.paths.root / "slow-start"
    slow.write_text("60")
    go.touch()
    run.wait("a round", lambda: run.told("round_started"))

    inflict.preempt(clean, list(clean.hosts))
    run.wait("the attempt's end", lambda: run.told("attempt_ended", attempt=0))
    slow.unlink()

    ends_the_same(run, 3, undisturbed)
    assert len(run.told("attempt_started")) == 2
    assert not [e["type"] for e in run.told("first_step", attempt=0) + run.told("saved", attempt=0)]
    assert [e["resume_step"] for e in run.told("round_started", attempt=1)] == [None]
    assert run.told("first_step", attempt=1)[0]["step"] == 1


@pytest.mark.long
def test_preempted_during_a_save(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """A save that is under way is finished, the agreed step's follows it."""
    run = start(clean, tmp_path)
    slow_saves(run, 3)
    before = len(run.told("save_started"))
    run.wait("a save", lambda: len(run.told("save_started")) > before)

    inflict.preempt(clean, run.state()["nodes"])
    run.wait("the stop", lambda: run.told("stopped"))
    slow_saves(run, 0)

    ends_the_same(run, 3, undisturbed)
    nothing_lost(run)
    signal, caught = run.told("signal", attempt=0)[0], run.told("saved", attempt=0)[before]
    assert run.told("save_started", attempt=0)[before]["t"] < signal["t"] < caught["t"], (
        "the stop did not fall into the save"
    )
    assert caught["step"] == run.told("save_started", attempt=0)[before]["step"]
    assert caught["step"] <= run.told("agreed", attempt=0)[0]["step"]


@pytest.mark.long
def test_preempted_during_an_evaluation(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """The evaluation, 50 s of it, is left at once and done again in the next attempt; its state before is what is saved."""
    run = in_evaluation(clean, tmp_path, 50)

    inflict.preempt(clean, run.state()["nodes"])
    run.wait("the stop", lambda: run.told("stopped"))
    (run.paths.root / "slow-evaluation").unlink()

    ends_the_same(run, 3, undisturbed)
    nothing_lost(run)
    steps = [e["step"] for e in run.told("evaluated")]
    assert steps == sorted(set(steps)), "an evaluation was counted twice"


def slow_saves(run: Run, seconds: float) -> None:
    """From now on saves take so long."""
    (run.paths.root / "slow-save").write_text(str(seconds))


def saving_for_a_preemption(cluster: Cluster, folder: Path, save_s: float = 2) -> Run:
    """A preempted run whose last save takes ``save_s`` and has just begun."""
    run = start(cluster, folder, resources=ONE_HOST, params={"step_s": 0.2})
    slow_saves(run, save_s)
    inflict.preempt(cluster, run.state()["nodes"])
    run.wait("the agreement", lambda: run.told("agreed"))
    return run


@pytest.mark.long
def test_taken_away_while_saving_for_a_preemption(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """A second signal, without any grace, comes into the save for the first: one stop, one requeue, nothing lost."""
    run = saving_for_a_preemption(clean, tmp_path)

    clean.run(["scontrol", "requeue", run.job_id])
    run.wait("the stop", lambda: run.told("stopped"))
    slow_saves(run, 0)

    ends_the_same(run, 3, undisturbed)
    assert len(run.told("attempt_started")) == 2
    nothing_lost(run)


@pytest.mark.long
def test_preempted_twice_in_a_row(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """The second preemption comes as soon as the run trains again."""
    run = start(clean, tmp_path)
    inflict.preempt(clean, run.state()["nodes"])
    run.wait("the second attempt", lambda: run.told("first_step", attempt=1))

    inflict.preempt(clean, run.state()["nodes"])

    ends_the_same(run, 3, undisturbed)
    assert len(run.told("attempt_started")) == 3
    nothing_lost(run, 0)
    nothing_lost(run, 1)


@pytest.mark.parametrize("how", ["scancel", pytest.param("cancel --save", marks=pytest.mark.long)])
def test_cancelled_while_saving_for_a_preemption(clean: Cluster, tmp_path: Path, how: str) -> None:
    """Who cancels a run that is being preempted does not get it back."""
    run = saving_for_a_preemption(
        clean, tmp_path, 2 if how == "scancel" else 6
    )  # a command of ours takes a while to start

    if how == "scancel":
        clean.run(["scancel", run.job_id])
    else:
        cancel_and_save(clean, run)

    stays_cancelled(clean, run)


@pytest.mark.long
def test_preempted_while_saving_for_a_cancel(clean: Cluster, tmp_path: Path) -> None:
    """A preemption that comes into the save of `cancel --save` does not bring the run back."""
    run = start(clean, tmp_path, resources=ONE_HOST)
    slow_saves(run, 5)
    cancel_and_save(clean, run)
    run.wait("the agreement", lambda: run.told("agreed"))

    inflict.preempt(clean, run.state()["nodes"])

    stays_cancelled(clean, run)


def test_the_time_limit(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """At the time limit the run saves, is requeued and goes on. Some 35 s of an attempt are left for 40 s of steps."""
    run = submit(
        tmp_path,
        clean.env,
        3,
        params={"step_s": 0.25},
        resources={**ONE_HOST, "timeout_min": 1},
        restart={"signal_lead_s": 20},
        distributed={"init_timeout_min": 0.9},
    )

    ends_the_same(run, 3, undisturbed)

    attempts = run.told("attempt_started")
    assert len(attempts) >= 2
    assert run.told("stop_requested")[0]["cause"] == "time_limit"
    nothing_lost(run)
    tells_of_the_stop(run)
