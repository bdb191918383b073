"""Waits for the runs that must end first. Without SLURM, whose dependencies do that, the leader waits while its nodes idle."""

from __future__ import annotations

from pathlib import Path

from launcher.node.leader.board import Board
from launcher.node.policy.decisions import Evidence
from launcher.run.after import Predecessor, broken, may_start, read_predecessors, state_of
from launcher.run.asking import PATIENCE_S, exists, load_object
from launcher.run.paths import RunPaths
from launcher.run.processes import runs_here

_LOOK_S = 1.0


async def await_predecessors(board: Board) -> Evidence | str | None:
    """Wait until all of them let this run start: None then, a sentence when it never can, evidence when somebody interrupts."""
    left = read_predecessors(board.spec.after)
    if not left or board.spec.batch == "slurm":
        return None
    board.history.event("waiting", runs=[one.run for one in left])
    answered = {one.run_dir: board.now() for one in left}
    stop = board.interrupted
    while stop is None and left:
        for one in list(left):
            state = _state(one, answered, board.now())
            if state is not None and not may_start(one.kind, state):
                return broken(one, state)
            if state is not None:
                left.remove(one)
        if left:
            stop = await board.until(lambda now: board.interrupted, timeout_s=_LOOK_S)
    return stop


def _state(one: Predecessor, answered: dict[str, float], now: float) -> str | None:
    """Return how it has ended; None when it has not, or while its folder may come back."""
    try:
        state = state_of(one) or ("failed" if _gone(RunPaths(Path(one.run_dir))) else None)
        answered[one.run_dir] = now
        return state
    except OSError:  # after so long, somebody has removed it
        return "failed" if now - answered[one.run_dir] > PATIENCE_S else None


def _gone(paths: RunPaths) -> bool:
    """Return whether its controller was killed: it does not run, and left no outcome. Raises OSError if that is unknown."""
    said = load_object(paths.submission, paths.root) or {}
    alive = runs_here(said.get("host"), said.get("pid"), said.get("pid_started"))
    return alive is False and not exists(paths.outcome, paths.root)  # written before it ends by itself
