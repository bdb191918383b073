"""What an agent tells of its ranks' progress with a heartbeat: the sum of what they reported since the last one."""

from __future__ import annotations

import pytest

from launcher.node.agent.progress import ProgressWindow
from launcher.node.wire.messages import RankUse
from launcher.run.messages import WorkerProgress


def progress(step: int, step_time_s: float | None = 0.1, wait_s: float | None = 0.02, **more: object) -> WorkerProgress:
    """A worker's report."""
    return WorkerProgress(
        step=step, step_time_s=step_time_s, wait_s=wait_s, data_s=0.01, total_steps=90, epoch=1, **more
    )  # type: ignore[arg-type]


def test_the_first_report_of_a_rank_waits_for_nothing() -> None:
    """Restarts are measured by it; the next ones wait for the heartbeat."""
    window = ProgressWindow(3)

    assert not window.holds(0, progress(1))
    assert window.heartbeat([]) == {"ranks": []}
    assert window.holds(0, progress(2))
    assert not window.holds(1, progress(2))


def test_a_heartbeat_tells_the_mean_of_all_steps_and_the_longest() -> None:
    """Reports count by the steps that they are of. What a rank uses is told with it; a rank without news keeps its use."""
    window = ProgressWindow(3)
    window.holds(0, progress(10))
    window.holds(0, progress(11, 0.5, 0.1))
    window.holds(0, progress(15, 0.1, 0.0))
    told = window.heartbeat([RankUse(rank=0, cpu_percent=90.0), RankUse(rank=1, cpu_percent=80.0)])

    zero, one = told.pop("ranks")
    assert told == {"round": 3, "total_steps": 90, "epoch": 1, "epochs": None}
    assert (zero.rank, zero.cpu_percent, zero.step, zero.longest_s) == (0, 90.0, 15, 0.5)
    assert zero.step_time_s == pytest.approx((0.5 + 4 * 0.1) / 5)
    assert zero.wait_s == pytest.approx(0.1 / 5)
    assert (one.rank, one.cpu_percent, one.step) == (1, 80.0, None)
    assert window.heartbeat([]) == {"ranks": []}


def test_another_message_takes_what_is_held_along() -> None:
    """A rank's messages keep their order: its last step is told before its end. It is not told twice."""
    window = ProgressWindow(3)
    window.holds(0, progress(1))
    window.holds(0, progress(2))
    taken = window.take(0)

    assert taken is not None
    assert taken.step == 2
    assert window.take(0) is None
    assert window.heartbeat([]) == {"ranks": []}


def test_unknown_times_stay_unknown() -> None:
    """A script tells no wait times; the first report after a start has no step time."""
    window = ProgressWindow(3)
    window.holds(0, progress(1))
    window.holds(0, progress(2, None, None))
    window.holds(1, progress(1))
    window.holds(1, progress(2, 0.1, None))
    zero, one = window.heartbeat([])["ranks"]

    assert (zero.step, zero.step_time_s, zero.longest_s) == (2, None, None)
    assert (one.step_time_s, one.wait_s) == (0.1, None)
