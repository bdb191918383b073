"""The run's folder is gone under a running leader: what it decides by, where its last words go."""

from __future__ import annotations

from launcher.node.leader.board import Board
from launcher.node.policy.decisions import Evidence, Kind
from launcher.run import index
from launcher.run.gone import Gone
from launcher.run.paths import RunPaths

__all__ = ["as_gone", "evidence_of", "follow", "look", "tell_outside"]

_SEEN_IN_IT = (Kind.UNREADABLE, Kind.LAST_SAVE, Kind.CANNOT_SAVE, Kind.DISK_AT_RISK)
"""Evidence that is what a folder that is gone looks like, after the patience of whoever has it."""


async def look(board: Board) -> Gone | None:
    """What became of the run's folder; None while it is in its place, or while nobody knows."""
    return await board.blocking(board.anchor.look) if board.anchor is not None else None


def evidence_of(gone: Gone) -> Evidence:
    """What the leader decides by."""
    place = None if gone.place is None else str(gone.place)
    return Evidence(Kind.GONE, gone.text, {"kind": "gone", "text": gone.text, "place": place})


async def as_gone(board: Board, evidence: Evidence) -> Evidence:
    """``evidence``, or what is behind it when the folder is gone."""
    gone = await look(board) if evidence.kind in _SEEN_IN_IT else None
    return evidence if gone is None else evidence_of(gone)


async def follow(board: Board) -> Gone | None:
    """At the end of an attempt: what is left to write goes to where the folder was moved."""
    gone = await look(board)
    if gone is not None and gone.place is not None:
        board.paths = RunPaths(gone.place)
        board.history.follow(board.paths)
    return gone


def tell_outside(board: Board, gone: Gone, reason: str) -> None:
    """The end in the job's comment and in the user's list of runs: nobody may find it in the folder."""
    board.allocation.remark(reason)
    index.note_gone(gone.root, gone.place, reason, board.allocation.job_id)
