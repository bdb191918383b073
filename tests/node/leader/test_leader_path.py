"""The plain path: wait for nodes, store, round, progress, finished, outcome."""

from __future__ import annotations

import dataclasses

import pytest
from an_event import an_event

from launcher.run import event_lines
from launcher.run.manifest import why_damaged
from launcher.run.state import read_state


def test_a_run_completes(world, virtual):
    """Two nodes of two workers train to the end: completed, exit code 0, final checkpoint committed and whole."""
    w = world(checkpoint={"interval_steps": 10})

    ending = virtual(w.attempt_once())

    assert ending.state == "completed"
    assert ending.exit_code == 0
    assert w.outcome["state"] == "completed"
    assert w.outcome["step"] == 40
    assert [e["step"] for e in w.events("saved")] == [10, 20, 30, 40]
    assert why_damaged(w.paths.checkpoint(40)) is None
    assert w.leftovers() == []
    kinds = [e["type"] for e in w.events()]
    assert kinds[0] == "attempt_started"
    assert kinds[-1] == "ended"
    assert kinds.index("round_started") < kinds.index("first_step") < kinds.index("round_ended")


def test_the_round_is_described(world, virtual):
    """round_started names master, ranks by host; state.json ends with phase ended and the last step."""
    w = world()

    virtual(w.attempt_once())

    (e,) = w.events("round_started")
    assert (e["master_addr"], e["master_port"], e["world_size"], e["resume_step"]) == ("n0", 5000, 4, None)
    assert [(r["rank"], r["host"], r["local_rank"]) for r in e["ranks"]] == [
        (0, "n0", 0),
        (1, "n0", 1),
        (2, "n1", 0),
        (3, "n1", 1),
    ]
    state = read_state(w.paths.state)
    assert (state["phase"], state["step"], state["leader_host"]) == ("ended", 40, "n0")


def test_only_the_last_checkpoints_are_kept(world, virtual):
    """keep_last and keep_every_steps decide what stays."""
    w = world(checkpoint={"interval_steps": 4, "keep_last": 2, "keep_every_steps": 16})

    virtual(w.attempt_once())

    kept = sorted(p.name for p in w.paths.checkpoints.iterdir())
    assert kept == ["step-00000016", "step-00000032", "step-00000036", "step-00000040"]


def test_time_intervals_are_asked_for_ahead(world, virtual):
    """interval_min has the leader ask for saves at steps nobody has entered; every one is committed."""
    w = world(checkpoint={"interval_min": 0.05})
    w.total_steps = 400

    ending = virtual(w.attempt_once())

    assert ending.state == "completed"
    saved = [e["step"] for e in w.events("saved")]
    assert len(saved) >= 5
    assert saved[-1] == 400
    assert not w.events("save_failed")


def test_a_finished_run_never_runs_again(world, virtual):
    """An attempt that finds an outcome does nothing."""
    w = world()
    virtual(w.attempt_once())
    before = len(w.events())

    ending = virtual(w.attempt_once())

    assert "had ended already" in ending.reason
    assert len(w.events()) == before


def test_resubmit_from_a_step_applies_once(world, virtual):
    """--from STEP sets later checkpoints aside in the first attempt after the resubmit, not in the requeues after it."""
    w = world(checkpoint={"interval_steps": 10, "keep_last": 9})
    virtual(w.attempt_once())
    w.paths.outcome.unlink()
    w.spec = dataclasses.replace(w.spec, resume_step=20)
    event_lines.append(w.paths.events, an_event("submitted", attempt=None, job_id="77", by="resubmit"))
    w.total_steps = 60

    async def preempt():
        await w.until(lambda: any(e["attempt"] == 1 and e["step"] == 50 for e in w.events("saved")))
        w.signal()

    assert virtual(w.attempt_once(preempt)).state == "requeued"
    assert virtual(w.attempt_once()).state == "completed"

    starts = [e["resume_step"] for e in w.events("round_started")]
    assert starts[:2] == [None, 20]
    assert starts[2] >= 50
    assert sorted(p.name for p in w.paths.checkpoints.glob("aside.*")) == [
        "aside.1.step-00000030",
        "aside.1.step-00000040",
    ]


@pytest.mark.parametrize("how", ["preempted", "worker_failed"])
def test_after_a_resubmit_from_a_step_its_new_saves_are_progress(world, virtual, how):
    """Four interruptions, each after a new save that lies below the old maximum: the run goes on to its end."""
    w = world(checkpoint={"interval_steps": 10, "keep_last": 9}, site={"grace_s": 20})
    w.total_steps = 100
    virtual(w.attempt_once())
    w.paths.outcome.unlink()
    w.spec = dataclasses.replace(w.spec, resume_step=20)
    event_lines.append(w.paths.events, an_event("submitted", attempt=None, job_id="77", by="resubmit"))

    def interrupt(worker):
        w.hooks.pop(worker.entered)
        w.signal() if how == "preempted" else worker.die(9)

    w.hooks |= {step: [interrupt] for step in (33, 43, 53, 63)}
    states = [virtual(w.attempt_once()).state for _ in range(5 if how == "preempted" else 1)]

    assert states == ["requeued"] * (len(states) - 1) + ["completed"]
    assert [e["evidence"] for e in w.events("decision")][1:-1] == [how] * 4
    assert [e["resume_step"] for e in w.events("round_started")][:2] == [None, 20]
    assert all(e["delay_s"] == 0 for e in w.events("requeued"))
