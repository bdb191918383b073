"""Whose a frame of a traceback is: the user's, a library's or the launcher's."""

from __future__ import annotations

import pytest

from launcher.report.diagnosis.traces import Frame, user_frame


@pytest.mark.parametrize("room", ["node/agent", "training/step", "run", "runtime"])
def test_the_launchers_own_frames_are_not_the_users(room: str) -> None:
    """The launcher's frames below the user's are passed over, also those of runs recorded when ``node`` was ``runtime``."""
    frames = [
        Frame(file="/home/ann/train.py", line=12, function="main", code=""),
        Frame(file=f"/scratch/ann/runs/net-1121-0842-k7f/lib/launcher/{room}/x.py", line=3, function="f", code=""),
    ]
    assert user_frame(frames) == frames[0]
