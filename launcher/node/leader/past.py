"""Reads what earlier attempts have left, before the leader begins. Raises OSError."""

from __future__ import annotations

from typing import Any

from launcher.node.allocation.allocation import Allocation
from launcher.node.leader.finish import Ending
from launcher.run import events
from launcher.run.asking import load_object
from launcher.run.paths import RunPaths

__all__ = ["ended_already", "first_of_submission", "waiting_since"]


def ended_already(paths: RunPaths, allocation: Allocation) -> Ending | None:
    """Return the end of a run that is over or was handed to another job; None when this attempt may begin."""
    outcome = load_object(paths.outcome, paths.root)
    if outcome is not None:
        return Ending(str(outcome.get("state")), f"The run had ended already: {outcome.get('reason')}", 0)
    owners = [e for e in events.recall(paths.events) if e["type"] in ("submitted", "requeued", "attempt_started")]
    last: dict[str, Any] = owners[-1] if owners else {}
    heir = last.get("job_id")
    handed = last.get("type") == "requeued" and last.get("how") == "continuation"
    if handed and heir and allocation.job_id and str(heir) != str(allocation.job_id):
        return Ending("requeued", f"The run was handed to job {heir}.", 0)
    return None


def first_of_submission(past: list[dict[str, Any]]) -> bool:
    """Return whether no attempt has begun since the run was last submitted."""
    for e in reversed(past):
        if e["type"] in ("submitted", "attempt_started"):
            return bool(e["type"] == "submitted")
    return True


def waiting_since(past: list[dict[str, Any]]) -> float | None:
    """Return when the wait for this attempt's allocation began."""
    times = [e.get("t") for e in past if e["type"] in ("submitted", "requeued", "attempt_ended")]
    last = times[-1] if times else None
    return float(last) if isinstance(last, (int, float)) else None
