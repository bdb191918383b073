"""Writes how a run ended whose leader could not."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from launcher.errors import RunCancelledError, RunFailedError
from launcher.node.allocation.allocation import Allocation
from launcher.node.sidecars.notify import send_end
from launcher.node.sidecars.trackers import deliver_rest
from launcher.run import clock, event_lines, events
from launcher.run.asking import load_object
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.run.state import forget_passed, write_outcome


def end_run(paths: RunPaths, allocation: Allocation, attempt: int, state: str, reason: str) -> None:
    """Write that the run has ended, where its leader could not: "cancelled" or "failed"; then tell users and trackers. Raises OSError."""
    allocation.forbid_requeue()
    allocation.withdraw_early()
    code = RunCancelledError.exit_code if state == "cancelled" else RunFailedError.exit_code
    tell(paths, attempt, "attempt_ended", why=reason)
    ended = {"state": state, "reason": reason, "exit_code": code, "step": None}
    tell(paths, attempt, "ended", **ended)
    write_outcome(paths.outcome, {**ended, "t": clock.now(), "attempt": attempt, "metrics": {}, "cause": None})
    passed = _passed(paths)
    forget_passed(paths)
    print(reason, file=sys.stderr, flush=True)
    with contextlib.suppress(OSError, ValueError):
        spec = RunSpec.read(paths.spec)
        if spec.held_by is None:  # a hold that is being ended has no time for its rerun's message
            send_end(spec, passed, state, reason)
            deliver_rest(spec, paths, passed)


def _passed(paths: RunPaths) -> dict[str, Any]:
    try:
        return load_object(paths.passed, paths.root) or {}
    except (OSError, ValueError):
        return {}


def tell(paths: RunPaths, attempt: int, type_: str, **values: Any) -> None:
    """Append an event to the history; never raises for the disk."""
    try:
        event_lines.append(paths.events, events.event(type_, attempt=attempt, **values))
    except OSError as error:
        print(f"events.jsonl cannot be written: {error}", file=sys.stderr)
