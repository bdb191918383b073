"""What an agent tells of its ranks' progress with a heartbeat: the sum of what they reported since the last one."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.node.agent.progress import ProgressWindow
from launcher.node.wire.messages import RankPlace, RankUse, StartRound
from launcher.run.messages import WorkerProgress


def window_of(ranks: int, detail_every_s: float = 0.0) -> ProgressWindow:
    """The window of a node's round 3."""
    workers = [RankPlace(rank=rank, local_rank=rank) for rank in range(ranks)]
    order: dict[str, Any] = {"world_size": 8, "master_addr": "a", "master_port": 1, "resume": None, "group_rank": 1}
    return ProgressWindow(StartRound(round=3, workers=workers, detail_every_s=detail_every_s, **order))


def progress(step: int, step_time_s: float | None = 0.1, wait_s: float | None = 0.02, **more: object) -> WorkerProgress:
    """A worker's report."""
    return WorkerProgress(
        step=step, step_time_s=step_time_s, wait_s=wait_s, data_s=0.01, total_steps=90, epoch=1, **more
    )  # type: ignore[arg-type]


def report(window: ProgressWindow, *steps: int) -> None:
    """Rank by rank, the step that it has done."""
    for rank, step in enumerate(steps):
        window.holds(rank, progress(step), 0.5)


def test_the_first_report_of_a_rank_waits_for_nothing() -> None:
    """Restarts are measured by it; the next ones wait for the heartbeat."""
    window = window_of(2)

    assert not window.holds(0, progress(1), 0.5)
    assert window.heartbeat([], 1.0)["ranks"] == []
    assert window.holds(0, progress(2), 0.5)
    assert not window.holds(1, progress(2), 0.5)


def test_a_heartbeat_tells_the_mean_of_all_steps_and_the_longest() -> None:
    """Reports count by the steps that they are of. What a rank uses is told with it; a rank without news keeps its use."""
    window = window_of(2)
    window.holds(0, progress(10), 0.5)
    window.holds(0, progress(11, 0.5, 0.1), 0.5)
    window.holds(0, progress(15, 0.1, 0.0), 0.5)
    told = window.heartbeat([RankUse(rank=0, cpu_percent=90.0), RankUse(rank=1, cpu_percent=80.0)], 1.0)

    zero, one = told.pop("ranks")
    assert told == {"round": 3, "quiet_s": 0.5, "total_steps": 90, "epoch": 1, "epochs": None}
    assert (zero.rank, zero.cpu_percent, zero.step) == (0, 90.0, 15)
    assert (zero.usual_s, zero.longest_s) == (0.3, 0.5)
    assert zero.step_time_s == pytest.approx((0.5 + 4 * 0.1) / 5)
    assert zero.wait_s == pytest.approx(0.1 / 5)
    assert (one.rank, one.cpu_percent, one.step) == (1, 80.0, None)
    assert window.heartbeat([], 2.0) == {"ranks": [], "round": 3, "quiet_s": 1.5}


def test_another_message_takes_what_is_held_along() -> None:
    """A rank's messages keep their order: its last step is told before its end. It is not told twice."""
    window = window_of(1)
    window.holds(0, progress(1), 0.5)
    window.holds(0, progress(2), 0.5)
    taken = window.take(0)

    assert taken is not None
    assert taken.step == 2
    assert window.take(0) is None
    assert window.heartbeat([], 1.0)["ranks"] == []


def test_unknown_times_stay_unknown() -> None:
    """A script tells no wait times; the first report after a start has no step time."""
    window = window_of(2)
    window.holds(0, progress(1), 0.5)
    window.holds(0, progress(2, None, None), 0.5)
    window.holds(1, progress(1), 0.5)
    window.holds(1, progress(2, 0.1, None), 0.5)
    zero, one = window.heartbeat([], 1.0)["ranks"]

    assert (zero.step, zero.step_time_s, zero.longest_s) == (2, None, None)
    assert (one.step_time_s, one.wait_s) == (0.1, None)


def test_between_details_a_heartbeat_tells_how_far_all_have_come() -> None:
    """The first heartbeat with news tells each rank. Then, until the next detail is due, the slowest and the fastest are told."""
    window = window_of(2, detail_every_s=16)
    report(window, 1, 1)
    report(window, 2, 2)
    assert [use.step for use in window.heartbeat([], 1.0)["ranks"]] == [2, 2]

    report(window, 4, 3)
    window.holds(1, progress(4, 0.7), 0.5)
    window.holds(0, progress(5), 0.5)
    told = window.heartbeat([RankUse(rank=0, cpu_percent=90.0)], 2.0)
    assert told == {
        "ranks": [], "round": 3, "slowest": 4, "fastest": 5, "usual_s": 0.1, "longest_s": 0.7, "quiet_s": 1.5, "total_steps": 90, "epoch": 1,
        "epochs": None,
    }  # fmt: skip
    assert window.heartbeat([], 3.0)["ranks"] == []

    report(window, 6, 6)
    told = window.heartbeat([RankUse(rank=0, cpu_percent=90.0)], 20.0)
    assert [(use.rank, use.step) for use in told["ranks"]] == [(0, 6), (1, 6)]
    assert told["ranks"][1].longest_s == 0.7  # of all steps since the last detail
    report(window, 7, 7)
    assert window.heartbeat([], 35.0)["ranks"] == []
    report(window, 8, 8)
    assert window.heartbeat([], 36.5)["ranks"] != []


def test_a_rank_that_falls_behind_is_told_at_once() -> None:
    """While others progress and the slowest does not, who it is must be known: the leader may have to name it soon."""
    window = window_of(2, detail_every_s=16)
    report(window, 1, 1)
    report(window, 2, 2)
    window.heartbeat([], 1.0)
    report(window, 3, 3)
    assert window.heartbeat([], 2.0)["ranks"] == []

    window.holds(0, progress(4), 0.5)
    assert [(use.rank, use.step) for use in window.heartbeat([], 3.0)["ranks"]] == [(0, 4), (1, 3)]


def test_how_long_nobody_has_progressed_is_told_from_the_last_report_on() -> None:
    """A pause shorter than two heartbeats is to be found: the leader adds nothing to what the agent knows."""
    window = window_of(1)
    assert window.heartbeat([], 1.0) == {"ranks": []}

    window.holds(0, progress(1), 1.25)
    window.holds(0, progress(2), 1.5)
    assert [window.heartbeat([], now)["quiet_s"] for now in (2.0, 3.0)] == [0.5, 1.5]


def test_a_stopped_process_is_told_at_once_and_so_is_its_end() -> None:
    """The leader counts how long a rank stands still (state T)."""
    window = window_of(1, detail_every_s=16)
    window.heartbeat([RankUse(rank=0, state="R")], 1.0)
    window.heartbeat([RankUse(rank=0, state="R")], 15.0)

    for now, state, told in [(16.0, "R", False), (17.0, "T", True), (18.0, "T", False), (19.0, "S", True)]:
        assert bool(window.heartbeat([RankUse(rank=0, state=state)], now)["ranks"]) is told


def test_nodes_tell_their_ranks_at_different_times() -> None:
    """All at once would keep the leader busy for a second, and idle for the next fifteen."""
    window = window_of(1, detail_every_s=10)
    use = [RankUse(rank=0, state="R")]
    told = [bool(window.heartbeat(use, now)["ranks"]) for now in range(1, 30)]

    assert [now for now, each in enumerate(told, 1) if each] == [1, 8, 18, 28]
