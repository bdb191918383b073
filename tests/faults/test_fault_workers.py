"""Faults inside an allocation, on the real cluster: each end equals, bit for bit, the undisturbed one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import inflict
import psutil
import pytest
from cluster import Cluster
from harness import ends_the_same, new_round, start, submit, tells

Undisturbed = Callable[[int], str]


def failed(rank: int, **cause: object) -> tuple[tuple[str, dict[str, object]], ...]:
    """What the history tells of a failed worker."""
    return (("worker_failed", {"rank": rank, "cause": cause}), *new_round("worker_failed"))


WORKER_FAULTS = {
    "killed": (
        lambda run: inflict.signal_rank(run, 1, signal.SIGKILL),
        failed(1, kind="signal", signal=signal.SIGKILL),
    ),
    "rank 0 killed": (
        lambda run: inflict.signal_rank(run, 0, signal.SIGKILL),
        failed(0, kind="signal", signal=signal.SIGKILL),
    ),
    "segfault": (
        lambda run: inflict.signal_rank(run, 1, signal.SIGSEGV),
        failed(1, kind="signal", signal=signal.SIGSEGV),
    ),
    "frozen": (
        lambda run: inflict.signal_rank(run, 1, signal.SIGSTOP),
        (("hang", {}), *new_round("hang")),
    ),
    "os._exit": (lambda run: (run.paths.root / "fault-exit-1").touch(), failed(1, kind="exit", exit_code=3)),
    "exception": (
        lambda run: (run.paths.root / "fault-exception-1").touch(),
        failed(1, kind="exception", exception="RuntimeError"),
    ),
    "store killed": (inflict.kill_store, (("store_lost", {}), *new_round("store_failed"))),
}


ONE_HOST = {"nodes": 1, "tasks_per_node": 3}
ON_ONE_HOST = ("segfault", "os._exit", "exception")
"""The same three ranks where only the way in which one of them ends differs: each host imports torch."""


@pytest.mark.parametrize("fault", WORKER_FAULTS)
def test_a_fault_inside_the_allocation(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, fault: str) -> None:
    """What breaks a worker or the store costs a round, not the allocation, and nothing of the result."""
    strike, story = WORKER_FAULTS[fault]
    run = start(clean, tmp_path, resources=ONE_HOST if fault in ON_ONE_HOST else {})

    strike(run)

    ends_the_same(run, 3, undisturbed)
    tells(run, ("saved", {}), *story)
    assert len(run.told("round_started")) == 2
    assert len(run.told("attempt_started")) == 1


@pytest.mark.quiet
def test_all_ranks_end_within_two_seconds_of_the_first(clean: Cluster, tmp_path: Path) -> None:
    """A rank dies on one host: those on the others, which wait for it in a collective, are gone within 2 s."""
    run = start(clean, tmp_path)
    others = [psutil.Process(run.rank(rank)["pid"]) for rank in (0, 2)]
    began = time.monotonic()

    inflict.signal_rank(run, 1, signal.SIGKILL)

    assert not psutil.wait_procs(others, timeout=60)[1]
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("damage", [inflict.flip_byte, inflict.truncate])
def test_the_newest_checkpoint_is_damaged(
    clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, damage: Callable[[Path], None]
) -> None:
    """A damaged checkpoint is found by its hash; the one before it is used."""
    # Four seconds between saves: no newer one comes between the damage and the kill.
    run = start(clean, tmp_path, resources=ONE_HOST, params={"step_s": 0.1}, checkpoint={"interval_steps": 40})
    run.wait_saved(2)
    inflict.signal_rank(run, 1, signal.SIGSTOP)  # nor a later save, however slow this machine is
    saved = run.told("saved")
    for path in inflict.newest_checkpoint(run).glob("*.pt"):
        damage(path)

    inflict.signal_rank(run, 1, signal.SIGKILL)

    ends_the_same(run, 3, undisturbed)
    tells(
        run,
        ("worker_failed", {"rank": 1}),
        ("decision", {"action": "new_round"}),
        ("checkpoint_damaged", {"path": str(run.paths.checkpoint(saved[-1]["step"]))}),
        ("round_started", {"round": 1, "resume_step": saved[-2]["step"]}),
        ("ended", {"state": "completed"}),
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_the_disk_is_full_during_a_save(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """Training goes on while nothing can be saved, says so, and saves again when there is room."""
    # Simulated nodes on this machine: the cluster's hosts do not see what is mounted here later.
    run = submit(tmp_path, {}, 3, backend="local", params={"step_s": 0.08})
    with inflict.small_disk(run.paths.checkpoints) as fill:
        run.wait_saved(1)
        fill()
        run.wait("a failed save", lambda: run.told("save_failed"))
        (run.paths.checkpoints / "filler").unlink()
        failed = run.told("save_failed")[-1]["t"]
        run.wait("a later save", lambda: [e for e in run.told("saved") if e["t"] > failed])
        ends_the_same(run, 3, undisturbed)
    tells(
        run, ("saved", {}), ("save_failed", {"errno_name": "ENOSPC"}), ("saved", {}), ("ended", {"state": "completed"})
    )
    assert len(run.told("round_started")) == 1
