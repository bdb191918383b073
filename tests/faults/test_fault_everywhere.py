"""Three kinds of fault in one run at every world size, without a cluster: seconds each."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import inflict
import pytest
from harness import ends_the_same, submit, tells

Undisturbed = Callable[[int], str]


LONG = pytest.mark.long


@pytest.mark.parametrize("world", [2, 8, *(pytest.param(w, marks=LONG) for w in (1, 3, 4, 5))])
def test_three_faults_at_every_world_size(tmp_path: Path, undisturbed: Undisturbed, world: int) -> None:
    """A killed worker, an exception and a killed store in one run: the same end at every world size."""
    shape = {} if world == 3 else {"nodes": 1, "tasks_per_node": world}  # three nodes once: each imports torch
    run = submit(tmp_path, {}, world, backend="local", resources=shape, params={"step_s": 0.05 * world})
    run.wait_saved(1)
    run.wait_round(0)

    inflict.signal_rank(run, world - 1, signal.SIGKILL)
    run.wait_round(1)
    (run.paths.root / "fault-exception-0").touch()
    run.wait_round(2)
    inflict.kill_store(run)
    run.wait_round(3)
    run.hurry()

    ends_the_same(run, world, undisturbed)
    tells(
        run,
        ("worker_failed", {"rank": world - 1, "cause": {"signal": signal.SIGKILL}}),
        ("decision", {"action": "new_round"}),
        ("round_started", {"round": 1, "world_size": world}),
        ("worker_failed", {"rank": 0, "cause": {"exception": "RuntimeError"}}),
        ("decision", {"action": "new_round"}),
        ("round_started", {"round": 2, "world_size": world}),
        ("store_lost", {}),
        ("decision", {"evidence": "store_failed", "action": "new_round"}),
        ("round_started", {"round": 3, "world_size": world}),
        ("ended", {"state": "completed"}),
    )
