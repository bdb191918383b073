"""Shared by the fault tests: the undisturbed end to compare with, and a cluster without jobs."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from harness import digest, submit

Undisturbed = Callable[[int], str]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """The digest of the end of an undisturbed run of that many ranks, on this machine; each computed by one test process."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def of(world: int) -> str:
        known = shared / f"undisturbed-{world}"
        with open(shared / f"undisturbed-{world}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not known.exists():
                known.write_text(_end_of(world, tmp_path_factory.mktemp(f"undisturbed-{world}")))
        return known.read_text()

    return of


def _end_of(world: int, directory: Path) -> str:
    on_one_node = {"nodes": 1, "tasks_per_node": world, "cpus_per_task": 1}
    run = submit(directory, {}, world, backend="local", params={"step_s": 0.0}, resources=on_one_node)
    outcome = run.wait_end()
    assert outcome["state"] == "completed", outcome
    return digest(run)


@pytest.fixture
def clean(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, with no job left before and after."""
    cluster.cancel_all()
    yield cluster
    cluster.cancel_all()
