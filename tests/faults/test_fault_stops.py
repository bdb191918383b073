"""Preemption, time limit and scancel on the real cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import inflict
import pytest
from cluster import Cluster
from harness import ends_the_same, start, submit

Undisturbed = Callable[[int], str]


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


def test_the_time_limit(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """At the time limit the run saves, is requeued and goes on."""
    run = submit(
        tmp_path,
        clean.env,
        3,
        params={"step_s": 0.6},
        resources={"timeout_min": 1},
        restart={"signal_lead_s": 20},
        distributed={"init_timeout_min": 0.9},
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
    job = run.job_id

    clean.run(["scancel", job])

    outcome = run.wait_end()
    assert outcome["state"] == "cancelled", outcome
    run.wait_no_process()
    clean.wait(lambda: clean.job(job).get("JobState", "") in ("CANCELLED", ""), "the job's end")
    time.sleep(5)
    assert clean.job(job).get("JobState", "") in ("CANCELLED", "")
    assert len(run.told("attempt_started")) == 1
