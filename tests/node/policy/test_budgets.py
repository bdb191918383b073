"""Budgets computed from histories."""

from __future__ import annotations

import pytest
from an_event import an_event

from launcher.node.policy.budgets import Budgets, backoff_s


def decision(evidence, action="new_round", t=0.0):
    return an_event("decision", t=t, evidence=evidence, action=action)


def test_each_cause_is_counted_apart_and_progress_clears_all():
    """Restarts count until a checkpoint of a new highest step is committed."""
    b = Budgets().feed_all(
        [decision("hang"), decision("worker_failed"), decision("worker_failed"), decision("done", "complete")]
    )
    assert b.restarts == {"hang": 1, "worker_failed": 2}

    b.feed(an_event("saved", t=1, step=10))
    assert b.restarts == {}

    b.feed_all([decision("hang"), an_event("saved", t=2, step=10), an_event("saved", t=3, step=5)])
    assert b.restarts == {"hang": 1}


def test_the_same_exception_is_counted_across_progress():
    """Type, place and step make it the same; a person's resubmit forgives."""
    failed = an_event("worker_failed", t=0, step=7, cause={"exception": "E", "frames": [{"file": "f", "line": 1}]})
    b = Budgets().feed_all([failed, an_event("saved", t=1, step=6), failed])
    assert list(b.same.values()) == [2]

    b.feed(an_event("submitted", t=2, by="resubmit"))
    assert not b.same


@pytest.mark.parametrize(
    ("between", "waited", "counted"),
    [
        (an_event("saved", step=None, path="out/1"), None, [1]),
        (an_event("progress_assumed"), None, [3]),
        (an_event("progress_assumed"), True, []),
    ],
    ids=["new files", "time alone", "a connection that breaks"],
)
def test_the_same_exception_without_a_step(between, waited, counted):
    """A plain script tells no step. Its files show that it got on; time does not. A broken connection never adds up."""
    cause = {"exception": "RuntimeError", "frames": []}
    failed = an_event("worker_failed", t=0, step=None, cause=cause, waited=waited)
    b = Budgets().feed_all([failed, failed, between, failed])

    assert list(b.same.values()) == counted


def test_attempts_without_progress_are_counted_in_a_row():
    """An attempt that commits something new begins the count anew."""
    b = Budgets()
    for n in range(3):
        b.feed(an_event("attempt_started", t=n, attempt=n))
    assert b.idle_attempts == 3

    b.feed(an_event("saved", t=4, step=1))
    assert b.idle_attempts == 0

    b.feed(an_event("attempt_started", t=5, attempt=3))
    assert b.idle_attempts == 1


def test_after_a_resubmit_from_an_earlier_step_progress_begins_there():
    """Four preempted attempts, and four failed workers, each after a new save below the old maximum: none is in vain."""
    saved = [an_event("saved", t=1, step=step) for step in (500, 1000)]
    again = an_event("submitted", t=2, by="resubmit")

    b = Budgets().feed_all([*saved, again])
    for n, step in enumerate((100, 200, 300, 400)):
        b.feed(an_event("attempt_started", t=3, attempt=n))
        b.feed(an_event("round_started", t=3, resume_step=step))
        b.feed(an_event("saved", t=4, step=step + 100))
        assert b.idle_attempts == 0
        b.feed(decision("preempted", "requeue", t=4))

    b = Budgets().feed_all([*saved, again, an_event("round_started", t=3, resume_step=100)])
    for step in (200, 300, 400, 500):
        b.feed(an_event("saved", t=4, step=step))
        b.feed(decision("worker_failed", t=4))
        assert b.restarts == {"worker_failed": 1}

    b.feed(an_event("saved", t=5, step=500))
    assert b.restarts == {"worker_failed": 1}


def test_the_step_that_a_resubmit_goes_on_from_is_no_progress():
    """Saved once more, by a round that began there."""
    b = Budgets().feed_all(
        [
            an_event("submitted", t=0, by="resubmit"),
            an_event("attempt_started", t=1, attempt=4),
            an_event("round_started", t=2, resume_step=100),
            an_event("saved", t=3, step=100),
        ]
    )

    assert b.idle_attempts == 1


def attempts(count, *, start_s, useful_s):
    """So many attempts, each taking ``start_s`` to its first step and saving a new one ``useful_s`` later."""
    for n in range(count):
        t = 10_000.0 * n
        yield an_event("attempt_started", t=t, attempt=n)
        yield an_event("first_step", t=t + start_s, step=n + 1)
        yield an_event("saved", t=t + start_s + useful_s, step=n + 1)


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

    b.feed(an_event("saved", t=10_000.0 * 2999 + 60 + 20, step=9000))
    assert backoff_s(b.poor_attempts) == 0.0


def test_hours_are_those_in_which_an_allocation_was_held():
    """Queue time counts nothing; an attempt that died and left no message counts to its last event."""
    b = Budgets().feed_all(
        [
            an_event("submitted", t=0),
            an_event("attempt_started", t=100, attempt=0),
            an_event("attempt_ended", t=160, attempt=0),
            an_event("attempt_started", t=500, attempt=1),
            an_event("saved", t=530, step=1, attempt=1),
            an_event("attempt_started", t=900, attempt=2),
        ]
    )

    assert b.spent_s == pytest.approx(90)
    assert b.spent_with_current_s(1000) == pytest.approx(190)


def test_what_a_command_tells_in_between_is_no_time_of_an_attempt():
    """A failed resubmission, an hour later by another host's clock: the dead leader's attempt lasted to its own last word."""
    b = Budgets().feed_all(
        [
            an_event("attempt_started", t=100, attempt=0),
            an_event("saved", t=160, step=1, attempt=0),
            an_event("warning", t=3760, attempt=None),
            an_event("attempt_started", t=200, attempt=1),
        ]
    )

    assert b.spent_s == pytest.approx(60)


def test_waiting_for_other_runs_holds_no_allocation():
    """Without SLURM a chained run's leader lives while it waits: neither hours nor a slow start are counted against it."""
    b = Budgets().feed_all([an_event("attempt_started", t=100, attempt=0), an_event("waiting", t=110, runs=["a"])])
    assert b.spent_with_current_s(5000) == pytest.approx(10)

    b.feed(an_event("round_started", t=9110))
    b.feed(an_event("first_step", t=9115, step=1))
    b.feed(an_event("saved", t=9125, step=10))
    assert (b.poor_attempts, b.spent_with_current_s(9130)) == (0, pytest.approx(30))

    b.feed(an_event("attempt_ended", t=9130, attempt=0))
    assert b.spent_s == pytest.approx(30)


def test_backing_off_doubles_up_to_half_an_hour():
    """The first attempt without progress costs nothing."""
    assert [backoff_s(n) for n in (0, 1, 2, 3, 4, 20)] == [0.0, 0.0, 30.0, 60.0, 120.0, 1800.0]
