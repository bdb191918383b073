"""How a job's shape is made to fit the machine it rehearses on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from planning import facts

from launcher.config.document.schema import Resources
from launcher.config.load.load import LoadedJob
from launcher.submission.rehearsal import rehearse
from launcher.submission.rehearsal.stages import Stage


@pytest.mark.parametrize(
    ("wanted", "here", "played"),
    [
        ((2, 2, 0), 0, (2, 2, 0)),
        ((2, 4, 4), 8, (2, 4, 4)),
        ((2, 4, 4), 1, (2, 4, 0)),
        ((32, 8, 8), 0, (2, 4, 0)),
        ((16, 1, 0), 0, (8, 1, 0)),
    ],
)
def test_fit(wanted: tuple[int, int, int], here: int, played: tuple[int, int, int]) -> None:
    """GPUs are used where all are here; else CPUs, and no more ranks than a machine can play."""
    nodes, tasks, gpus = wanted
    stage = Stage(facts(backend="local", gpus=tuple(map(str, range(here)))), "1")
    shape, notes = stage.fit(Resources(nodes=nodes, tasks_per_node=tasks, gpus_per_node=gpus))

    assert played == (shape.nodes, shape.tasks_per_node, shape.gpus_per_node)
    assert (played != wanted) == bool(notes)


def test_it_queues_no_other_job(job: Callable[..., LoadedJob]) -> None:
    """Neither itself again nor, with ``restart.queue_early``, the job of a next attempt, which would stay in the queue for ever."""
    loaded, _ = rehearse._quiet(job(restart={"queue_early": True}), Stage(facts(), "7", ("node1",)))

    assert not loaded.job.restart.requeue
    assert not loaded.job.restart.queue_early
