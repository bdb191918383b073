"""The run's folder was moved or deleted while the leader runs: the evidence of it, and where the rest is written."""

from __future__ import annotations

from launcher.node.leader.board import Board
from launcher.node.policy.decisions import Evidence, Kind
from launcher.run import index
from launcher.run.event_parts import Cause
from launcher.run.gone import Gone
from launcher.run.paths import RunPaths

_SEEN_IN_IT = (Kind.UNREADABLE, Kind.LAST_SAVE, Kind.CANNOT_SAVE, Kind.DISK_AT_RISK)
"""Evidence that a missing folder causes, too."""


def evidence_of(gone: Gone) -> Evidence:
    """Return the evidence that the leader decides by."""
    return Evidence(Kind.GONE, gone.text, Cause.plain("gone", gone.text, str(gone.place) if gone.place else None))


async def as_gone(board: Board, evidence: Evidence) -> Evidence:
    """Return ``evidence``, or its cause when the folder is not in its place."""
    gone = await board.blocking(board.anchor.look) if evidence.kind in _SEEN_IN_IT else None
    return evidence if gone is None else evidence_of(gone)


async def follow_folder(board: Board) -> Gone | None:
    """Write the rest of the history, at the end of an attempt, to where the folder was moved."""
    gone = await board.blocking(board.anchor.look)
    if gone is not None and gone.place is not None:
        board.paths = RunPaths(gone.place)
        board.history.follow(board.paths)
    return gone


def tell_outside(board: Board, gone: Gone, reason: str) -> None:
    """Write the end into the job's comment and the user's list of runs: the folder cannot be found."""
    board.allocation.remark(reason)
    index.note_gone(gone.root, gone.place, reason, board.allocation.job_id)
