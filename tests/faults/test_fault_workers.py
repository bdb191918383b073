"""Faults inside an allocation, on the real cluster: each end equals, bit for bit, the undisturbed one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import inflict
import pytest
from cluster import Cluster
from harness import ends_the_same, start, submit

Undisturbed = Callable[[int], str]


WORKER_FAULTS = {
    "killed": lambda run: inflict.signal_rank(run, 1, signal.SIGKILL),
    "rank 0 killed": lambda run: inflict.signal_rank(run, 0, signal.SIGKILL),
    "segfault": lambda run: inflict.signal_rank(run, 1, signal.SIGSEGV),
    "frozen": lambda run: inflict.signal_rank(run, 1, signal.SIGSTOP),
    "os._exit": lambda run: (run.paths.root / "fault-exit-1").touch(),
    "exception": lambda run: (run.paths.root / "fault-exception-1").touch(),
    "store killed": inflict.kill_store,
}


@pytest.mark.parametrize("fault", WORKER_FAULTS)
def test_a_fault_inside_the_allocation(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, fault: str) -> None:
    """What breaks a worker or the store costs a round, not the allocation, and nothing of the result."""
    run = start(clean, tmp_path)

    WORKER_FAULTS[fault](run)

    ends_the_same(run, 3, undisturbed)
    assert len(run.told("round_started")) == 2
    assert len(run.told("attempt_started")) == 1


@pytest.mark.parametrize("damage", [inflict.flip_byte, inflict.truncate])
def test_the_newest_checkpoint_is_damaged(
    clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, damage: Callable[[Path], None]
) -> None:
    """A damaged checkpoint is found by its hash; the one before it is used."""
    # Four seconds between saves: no newer one comes between the damage and the kill.
    run = start(clean, tmp_path, params={"step_s": 0.1}, checkpoint={"interval_steps": 40})
    saved = run.wait_saved(2)
    for path in inflict.newest_checkpoint(run).glob("*.pt"):
        damage(path)

    inflict.signal_rank(run, 1, signal.SIGKILL)

    ends_the_same(run, 3, undisturbed)
    assert run.told("checkpoint_damaged")
    second = run.told("round_started")[1]
    assert second["resume_step"] <= saved[0]["step"]


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
    assert len(run.told("round_started")) == 1
