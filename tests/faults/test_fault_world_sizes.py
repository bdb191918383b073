"""Three kinds of fault in one run, at every other world size."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import inflict
import pytest
from cluster import Cluster
from harness import digest, start, submit

Undisturbed = Callable[[int], str]


@pytest.mark.long
@pytest.mark.parametrize("world", [1, 2, 4, 5, 8])
def test_faults_at_other_world_sizes(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, world: int) -> None:
    """A killed worker, a preemption and a killed leader in one run: the same end at every world size."""
    run = start(clean, tmp_path, world, params={"epochs": 12})
    inflict.signal_rank(run, world - 1, signal.SIGKILL)
    run.wait("a second round", lambda: len(run.told("first_step")) >= 2)
    inflict.preempt(clean, run.state()["nodes"])
    run.wait("a second attempt", lambda: run.told("first_step", attempt=1))
    inflict.kill_agent(run, 0)

    outcome = run.wait_end()

    assert outcome["state"] == "completed", outcome
    assert len(run.told("attempt_started")) == 2
    assert len(run.told("leader_revived")) == 1
    run.wait_no_process()
    reference = submit(tmp_path / "reference", {}, world, backend="local", params={"step_s": 0.0, "epochs": 12})
    assert reference.wait_end()["state"] == "completed"
    assert digest(run) == digest(reference)
