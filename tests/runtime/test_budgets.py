"""Budgets computed from histories."""

from __future__ import annotations

import pytest

from launcher.runtime.budgets import Budgets, backoff_s


def decision(evidence, action="new_round", t=0.0):
    return {"t": t, "type": "decision", "evidence": evidence, "action": action}


def test_each_cause_is_counted_apart_and_progress_clears_all():
    """Restarts count until a checkpoint of a new highest step is committed."""
    b = Budgets().feed_all(
        [decision("hang"), decision("worker_failed"), decision("worker_failed"), decision("done", "complete")]
    )
    assert b.restarts == {"hang": 1, "worker_failed": 2}

    b.feed({"t": 1, "type": "saved", "step": 10})
    assert b.restarts == {}

    b.feed_all([decision("hang"), {"t": 2, "type": "saved", "step": 10}, {"t": 3, "type": "saved", "step": 5}])
    assert b.restarts == {"hang": 1}


def test_the_same_exception_is_counted_across_progress():
    """Type, place and step make it the same; a person's resubmit forgives."""
    failed = {
        "t": 0,
        "type": "worker_failed",
        "step": 7,
        "cause": {"exception": "E", "frames": [{"file": "f", "line": 1}]},
    }
    b = Budgets().feed_all([failed, {"t": 1, "type": "saved", "step": 6}, failed])
    assert list(b.same.values()) == [2]

    b.feed({"t": 2, "type": "submitted", "by": "resubmit"})
    assert not b.same


def test_attempts_without_progress_are_counted_in_a_row():
    """An attempt that commits something new begins the count anew."""
    b = Budgets()
    for n in range(3):
        b.feed({"t": n, "type": "attempt_started", "attempt": n})
    assert b.idle_attempts == 3

    b.feed({"t": 4, "type": "saved", "step": 1})
    assert b.idle_attempts == 0

    b.feed({"t": 5, "type": "attempt_started", "attempt": 3})
    assert b.idle_attempts == 1


def test_hours_are_those_in_which_an_allocation_was_held():
    """Queue time counts nothing; an attempt that died without a word counts to its last event."""
    b = Budgets().feed_all(
        [
            {"t": 0, "type": "submitted"},
            {"t": 100, "type": "attempt_started", "attempt": 0},
            {"t": 160, "type": "attempt_ended", "attempt": 0},
            {"t": 500, "type": "attempt_started", "attempt": 1},
            {"t": 530, "type": "saved", "step": 1},
            {"t": 900, "type": "attempt_started", "attempt": 2},
        ]
    )

    assert b.spent_s == pytest.approx(90)
    assert b.spent_with_current_s(1000) == pytest.approx(190)


def test_backing_off_doubles_up_to_half_an_hour():
    """The first attempt without progress costs nothing."""
    assert [backoff_s(n) for n in (0, 1, 2, 3, 4, 20)] == [0.0, 0.0, 30.0, 60.0, 120.0, 1800.0]
