"""Chooses what a round resumes from: the newest checkpoint that verifies; an absent disk never makes it an older one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from launcher.errors import CheckpointError, RunDirError
from launcher.node.checkpoints import committed
from launcher.node.checkpoints.committed import CommittedCheckpoint
from launcher.node.leader.board import Board
from launcher.node.leader.folder_retries import until_answered
from launcher.node.policy.decisions import Evidence, Kind
from launcher.run.asking import PATIENCE_S, NotAskedError, OwnError

_T = TypeVar("_T")


async def choose_resume(board: Board) -> CommittedCheckpoint | Evidence | None:
    """Return the newest checkpoint that verifies; a fork's origin when the run has none of its own; None: from scratch.

    Evidence when that cannot be found out, or when somebody interrupts meanwhile. Raises RunDirError.
    """
    heard: list[tuple[str, str]] = []
    try:
        found = await _asked(board, lambda: _look(board, heard))
        if isinstance(found, Evidence) and found.kind is Kind.UNREADABLE:
            found = await board.blocking(lambda: _older(board, heard)) or found
        if found is None and board.spec.resume:
            origin = board.spec.resume
            found = await _asked(board, lambda: committed.open_foreign(origin))
    except (CheckpointError, OwnError) as error:
        return Evidence(Kind.NO_RESUME, str(error).rstrip("."))
    except OSError as error:
        raise RunDirError(f"The checkpoints in {board.paths.checkpoints} cannot be read: {error}.") from error
    if isinstance(found, Evidence):
        return found
    board.first_of_submission = False
    for path, why in heard:
        board.history.event("checkpoint_damaged", path=path, why=why)
    # What lies beyond is made anew, and saved anew: its checkpoints may be damaged, set aside or deleted.
    own = found is not None and found.path.parent == board.paths.checkpoints
    board.saver.trusted = {step for step in board.saver.trusted if own and found is not None and step <= found.step}
    board.saver.last_step = None if found is None else found.step
    return found


async def _asked(board: Board, work: Callable[[], _T]) -> _T | Evidence:
    """Return what ``work`` finds in the run's folder; evidence when that does not answer, or when a stop is asked for."""
    try:
        return await until_answered(
            board.blocking,
            work,
            board.paths.root,
            enough=lambda: board.interrupted is not None,
            refused=lambda error: board.history.warn(f"the run's folder does not answer ({error}); retrying"),
        )
    except NotAskedError as error:
        text = f"the run's folder did not answer for {PATIENCE_S / 60:g} minutes ({error})"
        return board.interrupted or Evidence(Kind.UNREADABLE, text)


def _look(board: Board, heard: list[tuple[str, str]], *, patient: bool = True) -> CommittedCheckpoint | None:
    """Return the newest checkpoint that verifies; ``heard`` gets the damaged ones. Raises OSError when it is not known."""
    heard.clear()
    spec, paths = board.spec, board.paths
    if spec.resume_step is not None and board.first_of_submission:
        committed.set_aside_beyond(paths, spec.resume_step, board.claim)
    return committed.newest_good(
        paths,
        trusted=frozenset(board.saver.trusted),
        damaged=lambda path, why: heard.append((str(path), why)),
        patient=patient,
    )


def _older(board: Board, heard: list[tuple[str, str]]) -> CommittedCheckpoint | None:
    """Return a checkpoint older than those that the disk has lost, which are kept aside: the leader has waited long enough.

    Without one, this attempt must not take the run for one that has saved nothing.
    """
    try:
        found = _look(board, heard, patient=False)
        if found is not None:
            committed.set_aside_beyond(board.paths, found.step, board.claim)
    except OSError:
        return None
    return found
