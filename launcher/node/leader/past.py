"""Reads what earlier attempts have left, before the leader begins. Raises OSError."""

from __future__ import annotations

from launcher.node.allocation.allocation import Allocation
from launcher.node.leader.finish import Ending
from launcher.run import event_lines
from launcher.run.asking import load_object
from launcher.run.events import AttemptEnded, AttemptStarted, Event, JobNamed, Requeued, RunSubmitted, last_of
from launcher.run.paths import RunPaths


def ended_already(paths: RunPaths, allocation: Allocation) -> Ending | None:
    """Return the end of a run that is over or was handed to another job; None when this attempt may begin."""
    outcome = load_object(paths.outcome, paths.root)
    if outcome is not None:
        return Ending(str(outcome.get("state")), f"The run had ended already: {outcome.get('reason')}", 0)
    match last_of(event_lines.recall(paths.events), JobNamed):
        case Requeued(how="continuation", job_id=str(other)) if other and allocation.job_id not in (None, "", other):
            return Ending("requeued", f"Job {other} continues the run.", 0)
    return None


def first_of_submission(past: list[Event]) -> bool:
    """Return whether no attempt has begun since the run was last submitted."""
    return not isinstance(last_of(past, RunSubmitted, AttemptStarted), AttemptStarted)


def waiting_since(past: list[Event]) -> float | None:
    """Return when the wait for this attempt's allocation began."""
    last = last_of(past, RunSubmitted, Requeued, AttemptEnded)
    return None if last is None else last.t
