"""Budgets computed from histories."""

from __future__ import annotations

import pytest

from launcher.node.policy.budgets import Budgets, backoff_s


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


def test_after_a_resubmit_from_an_earlier_step_progress_begins_there():
    """Four preempted attempts, and four failed workers, each after a new save below the old maximum: none is in vain."""
    saved = [{"t": 1, "type": "saved", "step": step} for step in (500, 1000)]
    again = {"t": 2, "type": "submitted", "by": "resubmit"}

    b = Budgets().feed_all([*saved, again])
    for n, step in enumerate((100, 200, 300, 400)):
        b.feed({"t": 3, "type": "attempt_started", "attempt": n})
        b.feed({"t": 3, "type": "round_started", "resume_step": step})
        b.feed({"t": 4, "type": "saved", "step": step + 100})
        assert b.idle_attempts == 0
        b.feed(decision("preempted", "requeue", t=4))

    b = Budgets().feed_all([*saved, again, {"t": 3, "type": "round_started", "resume_step": 100}])
    for step in (200, 300, 400, 500):
        b.feed({"t": 4, "type": "saved", "step": step})
        b.feed(decision("worker_failed", t=4))
        assert b.restarts == {"worker_failed": 1}

    b.feed({"t": 5, "type": "saved", "step": 500})
    assert b.restarts == {"worker_failed": 1}


def test_the_step_that_a_resubmit_goes_on_from_is_no_progress():
    """Saved once more, by a round that began there."""
    b = Budgets().feed_all(
        [
            {"t": 0, "type": "submitted", "by": "resubmit"},
            {"t": 1, "type": "attempt_started", "attempt": 4},
            {"t": 2, "type": "round_started", "resume_step": 100},
            {"t": 3, "type": "saved", "step": 100},
        ]
    )

    assert b.idle_attempts == 1


def attempts(count, *, start_s, useful_s):
    """So many attempts, each taking ``start_s`` to its first step and saving a new one ``useful_s`` later."""
    for n in range(count):
        t = 10_000.0 * n
        yield {"t": t, "type": "attempt_started", "attempt": n}
        yield {"t": t + start_s, "type": "first_step", "step": n + 1}
        yield {"t": t + start_s + useful_s, "type": "saved", "step": n + 1}


@pytest.mark.parametrize(
    ("start_s", "useful_s", "delay_s"),
    [(120, 5, 120.0), (120, 29, 120.0), (120, 30, 0.0), (600, 3600, 0.0), (29, 0, 0.0), (30, 1, 120.0)],
)
def test_attempts_that_yield_little_wait_and_are_never_given_up(start_s, useful_s, delay_s):
    """Four in a row whose saved work took less than a quarter of their start-up; one of under 30 s is cheaper than a wait."""
    b = Budgets().feed_all(attempts(4, start_s=start_s, useful_s=useful_s))

    assert backoff_s(b.poor_attempts) == delay_s
    assert b.idle_attempts == 0


def test_an_attempt_that_yields_enough_ends_the_waiting():
    """Later saves of an attempt count: what it yields is all that it has saved. A long count waits half an hour at most."""
    b = Budgets().feed_all(attempts(3000, start_s=60, useful_s=2))
    assert (b.poor_attempts, backoff_s(b.poor_attempts)) == (3000, 1800.0)

    b.feed({"t": 10_000.0 * 2999 + 60 + 20, "type": "saved", "step": 9000})
    assert backoff_s(b.poor_attempts) == 0.0


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


def test_what_a_command_tells_in_between_is_no_time_of_an_attempt():
    """A failed resubmission, an hour later by another host's clock: the dead leader's attempt lasted to its own last word."""
    b = Budgets().feed_all(
        [
            {"t": 100, "type": "attempt_started", "attempt": 0},
            {"t": 160, "type": "saved", "step": 1, "attempt": 0},
            {"t": 3760, "type": "warning", "attempt": None},
            {"t": 200, "type": "attempt_started", "attempt": 1},
        ]
    )

    assert b.spent_s == pytest.approx(60)


def test_waiting_for_other_runs_holds_no_allocation():
    """Without SLURM a chained run's leader lives while it waits: neither hours nor a slow start are counted against it."""
    b = Budgets().feed_all(
        [{"t": 100, "type": "attempt_started", "attempt": 0}, {"t": 110, "type": "waiting", "runs": ["a"]}]
    )
    assert b.spent_with_current_s(5000) == pytest.approx(10)

    b.feed({"t": 9110, "type": "round_started"})
    b.feed({"t": 9115, "type": "first_step", "step": 1})
    b.feed({"t": 9125, "type": "saved", "step": 10})
    assert (b.poor_attempts, b.spent_with_current_s(9130)) == (0, pytest.approx(30))

    b.feed({"t": 9130, "type": "attempt_ended", "attempt": 0})
    assert b.spent_s == pytest.approx(30)


def test_backing_off_doubles_up_to_half_an_hour():
    """The first attempt without progress costs nothing."""
    assert [backoff_s(n) for n in (0, 1, 2, 3, 4, 20)] == [0.0, 0.0, 30.0, 60.0, 120.0, 1800.0]
