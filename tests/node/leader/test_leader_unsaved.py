"""Saves that fail for good: told at once, ended early, and never the reason to train again what has been trained."""

from __future__ import annotations

import os

import pytest


def broken_saves(w, *, permanent=True, ranks=(1,), error="model: cannot pickle 'generator' object", from_step=0):
    """Saves of these ranks fail from a step on, in the same way each time; the last one is given up."""

    class Broken(w.worker_class):
        async def save(self, step):
            if self.rank not in ranks or step < from_step:
                return await super().save(step)
            self.say("save_begun", step=step)
            values = {
                "error": error,
                "errno": None if permanent else 28,
                "permanent": permanent,
                "last": step == w.total_steps,
            }
            self.say("save_failed", step=step, **values)

        def say(self, type_, **values):
            if type_ == "finished":
                values["saved"] = self.rank not in ranks
            super().say(type_, **values)

    w.worker_class = Broken


def test_a_state_that_cannot_be_pickled_ends_the_run_early(world, virtual):
    """After three saves that failed in a way that no other try mends: failed, with the reason, long before the end."""
    w = world(checkpoint={"interval_steps": 10})
    w.total_steps = 1000
    broken_saves(w)

    ending = virtual(w.attempt_once())

    assert ending.state == "failed"
    assert "no checkpoint can be written: model: cannot pickle" in w.outcome["reason"].replace("No ", "no ", 1)
    assert len(w.events("round_started")) == 1
    assert len(w.events("save_failed")) == 3
    assert w.outcome["step"] < 60


def test_one_save_in_between_takes_the_count_back(world, virtual):
    """Two failures, a checkpoint, two failures, a checkpoint: the run completes."""
    w = world(checkpoint={"interval_steps": 10})
    w.total_steps = 60

    class Sometimes(w.worker_class):
        async def save(self, step):
            if self.rank or step % 30 == 0:
                return await super().save(step)
            self.say("save_failed", step=step, error="no", errno=None, permanent=True, last=False)

    w.worker_class = Sometimes

    assert virtual(w.attempt_once()).state == "completed"
    assert [e["step"] for e in w.events("save_failed")] == [10, 20, 40, 50]


@pytest.mark.parametrize("permanent", [True, False])
def test_a_last_save_that_fails_does_not_train_again(world, virtual, permanent):
    """The workers have tried it again and again: failed, one round, and the checkpoint before it is named."""
    w = world(checkpoint={"interval_steps": 10})
    w.total_steps = 45
    broken_saves(w, permanent=permanent, from_step=45)

    ending = virtual(w.attempt_once())

    assert ending.state == "failed"
    assert "last checkpoint could not be written" in w.outcome["reason"]
    assert len(w.events("round_started")) == 1
    assert [e["step"] for e in w.events("saved")][-1] == 40


def test_a_run_whose_last_save_was_given_up_is_not_completed(world, virtual):
    """One rank could not write its part when the others had ended already, and says later that it has: the checkpoint is not there."""
    w = world(checkpoint={"interval_steps": 10})
    w.total_steps = 45

    class Early(w.worker_class):
        async def save(self, step):
            if self.rank != 1 or step < 45:
                return await super().save(step)
            self.say("save_failed", step=step, error="no", errno=28, last=False)

        def say(self, type_, **values):
            super().say(type_, **values | ({"saved": True} if type_ == "finished" else {}))

    w.worker_class = Early

    assert virtual(w.attempt_once()).state == "failed"
    assert "last checkpoint could not be written" in w.outcome["reason"]
    assert [e["step"] for e in w.events("saved")][-1] == 40


@pytest.mark.parametrize(("times", "state"), [(3, "completed"), (999, "failed")])
def test_a_last_checkpoint_that_cannot_be_committed_is_tried_again(world, virtual, monkeypatch, times, state):
    """Every part is durable; the leader's rename fails: again for minutes, then the run has failed, and is not called completed."""
    w = world(checkpoint={"interval_steps": 10})
    w.total_steps = 45
    rename, left = os.rename, [times]

    def failing(old, new, **how):
        if str(new).endswith("step-00000045") and left[0] > 0:
            left[0] -= 1
            raise OSError(30, "Read-only file system")
        return rename(old, new, **how)

    monkeypatch.setattr(os, "rename", failing)

    ending = virtual(w.attempt_once())

    assert ending.state == state
    assert len(w.events("round_started")) == 1
    assert w.events("saved")[-1]["step"] == (45 if state == "completed" else 40)
