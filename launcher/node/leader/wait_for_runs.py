"""Without SLURM nobody holds a run back until others have ended: its leader waits for them, its nodes idle."""

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
    """Until all of them let this run start: None. A sentence when it never can; evidence when somebody interrupts."""
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
    """How it has ended; None when it has not, or its folder has been away for less than it may be."""
    try:
        state = state_of(one) or ("failed" if _gone(RunPaths(Path(one.run_dir))) else None)
        answered[one.run_dir] = now
        return state
    except OSError:  # in the end somebody has removed it
        return "failed" if now - answered[one.run_dir] > PATIENCE_S else None


def _gone(paths: RunPaths) -> bool:
    """Its controller does not run any more, and it left no outcome: killed. Raises OSError if that is unknown."""
    said = load_object(paths.submission, paths.root) or {}
    alive = runs_here(said.get("host"), said.get("pid"), said.get("pid_started"))
    return alive is False and not exists(paths.outcome, paths.root)  # written before a sound one leaves
