"""Shared by the fault tests: the undisturbed end to compare with, and a cluster without jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from cluster import Cluster
from harness import digest, submit

Undisturbed = Callable[[int], str]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """The digest of the end of an undisturbed run of that many ranks, on this machine, computed once each."""
    known: dict[int, str] = {}

    def of(world: int) -> str:
        if world not in known:
            directory = tmp_path_factory.mktemp(f"undisturbed-{world}")
            on_one_node = {"nodes": 1, "tasks_per_node": world, "cpus_per_task": 1}
            run = submit(directory, {}, world, backend="local", params={"step_s": 0.0}, resources=on_one_node)
            outcome = run.wait_end()
            assert outcome["state"] == "completed", outcome
            known[world] = digest(run)
        return known[world]

    return of


@pytest.fixture
def clean(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, with no job left before and after."""
    cluster.cancel_all()
    yield cluster
    cluster.cancel_all()
