"""Faults inside an allocation, on the real cluster: each end equals, bit for bit, the undisturbed one."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import inflict
import psutil
import pytest
from cluster import Cluster
from harness import ONE_HOST, Run, ends_the_same, start, struck_by, submit, tells

Undisturbed = Callable[[int], str]
Story = tuple[tuple[str, dict[str, object]], str]
"""The event that a fault begins with, and the evidence that the leader decides on."""


def failed(rank: int, **cause: object) -> Story:
    """What the history tells of a failed worker."""
    return ("worker_failed", {"rank": rank, "cause": cause}), "worker_failed"


WORKER_FAULTS: dict[str, tuple[Callable[[Run], object], Story]] = {
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
    "frozen": (lambda run: inflict.signal_rank(run, 1, signal.SIGSTOP), (("hang", {}), "hang")),
    "os._exit": (lambda run: (run.paths.root / "fault-exit-1").touch(), failed(1, kind="exit", exit_code=3)),
    "exception": (
        lambda run: (run.paths.root / "fault-exception-1").touch(),
        failed(1, kind="exception", exception="RuntimeError"),
    ),
    "store killed": (inflict.kill_store, (("store_lost", {}), "store_failed")),
}


@pytest.fixture(scope="module")
def struck(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that has suffered all of these."""
    strikes = [*(strike for strike, _ in WORKER_FAULTS.values()), Run.hurry]
    return struck_by(cluster, tmp_path_factory.mktemp("struck"), strikes, params={"step_s": 0.2})


@pytest.mark.parametrize("fault", WORKER_FAULTS)
def test_a_fault_inside_the_allocation(struck: Run, undisturbed: Undisturbed, fault: str) -> None:
    """What breaks a worker or the store costs a round, not the allocation, and nothing of the result."""
    number = list(WORKER_FAULTS).index(fault)
    (type_, values), evidence = WORKER_FAULTS[fault][1]

    ends_the_same(struck, 3, undisturbed)
    tells(
        struck,
        ("saved", {"round": number}),
        (type_, {"round": number, **values}),
        ("round_ended", {"round": number}),
        ("decision", {"round": number, "evidence": evidence, "action": "new_round"}),
        ("round_started", {"attempt": 0, "round": number + 1}),
        ("first_step", {"round": number + 1}),
        ("ended", {"state": "completed"}),
    )
    assert len(struck.told("round_started")) == 1 + len(WORKER_FAULTS)
    assert len(struck.told("attempt_started")) == 1


@pytest.mark.quiet
def test_all_ranks_end_within_two_seconds_of_the_first(clean: Cluster, tmp_path: Path) -> None:
    """A rank dies on one host: those on the others, which wait for it in a collective, are gone within 2 s."""
    run = start(clean, tmp_path)
    others = [psutil.Process(run.rank(rank)["pid"]) for rank in (0, 2)]
    began = time.monotonic()

    inflict.signal_rank(run, 1, signal.SIGKILL)

    assert not psutil.wait_procs(others, timeout=60)[1]
    assert time.monotonic() - began < 2


DAMAGE = {"flipped byte": inflict.flip_byte, "truncated file": inflict.truncate}


@pytest.fixture(scope="module")
def damaged(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[list[int]]]:
    """A run whose newest checkpoint is damaged before a worker dies, once in each way; the steps saved until then."""
    cluster.cancel_all()
    # Four seconds between saves: no newer one comes between the damage and the kill.
    pace = {"params": {"step_s": 0.1}, "checkpoint": {"interval_steps": 40}}
    run = start(cluster, tmp_path_factory.mktemp("damaged"), resources=ONE_HOST, **pace)
    saved: list[list[int]] = []
    for number, damage in enumerate(DAMAGE.values()):
        run.wait_round(number)
        run.wait_saved(2 + number)
        inflict.signal_rank(run, 1, signal.SIGSTOP)  # nor a later save, however slow this machine is
        saved.append([e["step"] for e in run.told("saved")])
        for path in inflict.newest_checkpoint(run).glob("*.pt"):
            damage(path)
        inflict.signal_rank(run, 1, signal.SIGKILL)
    run.wait_end()
    return run, saved


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_newest_checkpoint_is_damaged(
    damaged: tuple[Run, list[list[int]]], undisturbed: Undisturbed, damage: str
) -> None:
    """A damaged checkpoint is found by its hash; the one before it is used."""
    run, saved = damaged
    number = list(DAMAGE).index(damage)
    newest, before = sorted(set(saved[number]))[:-3:-1]

    ends_the_same(run, 3, undisturbed)
    tells(
        run,
        ("worker_failed", {"round": number, "rank": 1}),
        ("decision", {"round": number, "action": "new_round"}),
        ("checkpoint_damaged", {"path": str(run.paths.checkpoint(newest))}),
        ("round_started", {"round": number + 1, "resume_step": before}),
        ("ended", {"state": "completed"}),
    )


def test_the_disk_is_full_during_a_save(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """Training goes on while nothing can be saved, says so, and saves again when there is room."""
    run = submit(tmp_path, clean.env, 3, resources=ONE_HOST, params={"step_s": 0.08}, slurm={"extra": {"hold": True}})
    with clean.small_disk() as disk:
        run.paths.checkpoints.rmdir()
        run.paths.checkpoints.symlink_to(disk)
        clean.run(["scontrol", "release", run.job_id])
        run.wait_saved(1)
        inflict.fill(disk / "filler")
        run.wait("a failed save", lambda: run.told("save_failed"))
        (disk / "filler").unlink()
        failed = run.told("save_failed")[-1]["t"]
        run.wait("a later save", lambda: [e for e in run.told("saved") if e["t"] > failed])
        ends_the_same(run, 3, undisturbed)
    tells(
        run, ("saved", {}), ("save_failed", {"errno_name": "ENOSPC"}), ("saved", {}), ("ended", {"state": "completed"})
    )
    assert len(run.told("round_started")) == 1
