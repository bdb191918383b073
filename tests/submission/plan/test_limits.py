"""Facts about a partition's limits: what can never run is refused, what may wait is warned of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from planning import facts

from launcher.config.load.load import LoadedJob
from launcher.errors import ConfigError
from launcher.run.spec import SiteSpec
from launcher.slurm.site import Partition
from launcher.submission.facts.facts import Facts, SlurmFacts
from launcher.submission.plan.plan import plan

Make = Callable[..., LoadedJob]


def _on(**changes: Any) -> Facts:
    values: dict[str, Any] = {
        "nodes": 4,
        "usable_nodes": 4,
        "cpus_per_node": 8,
        "gpus_per_node": 4,
        "mem_gb_per_node": 16.0,
    }
    partition = Partition(name="main", default=True, **{**values, **changes})
    return facts(slurm=SlurmFacts(found=True, known=True, site=SiteSpec(), partition=partition))


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"nodes": 4, "spare_nodes": 1}, r"asks for 5 nodes \(spares included\), partition main has 4"),
        ({"tasks_per_node": 3, "cpus_per_task": 3}, r"asks for 3 x 3 = 9 CPUs a node.*at most 8"),
        ({"gpus_per_node": 8}, r"gpus_per_node: the job asks for 8 GPUs.*at most 4"),
        ({"mem_gb": 64.0}, r"mem_gb: the job asks for 64 GB.*at most 16"),
    ],
)
def test_what_no_node_has_is_refused(job: Make, resources: dict[str, Any], said: str) -> None:
    """It would wait in the queue for ever."""
    with pytest.raises(ConfigError, match=said):
        plan(job(resources=resources), _on())


def test_everything_impossible_is_said_at_once(job: Make) -> None:
    """One line a problem."""
    with pytest.raises(ConfigError) as caught:
        plan(job(resources={"nodes": 9, "cpus_per_task": 99}), _on())

    assert len(caught.value.problems) == 2


def test_what_fits_passes_in_silence(job: Make) -> None:
    """The whole partition may be asked for."""
    made = plan(job(resources={"nodes": 4, "gpus_per_node": 4, "cpus_per_task": 2, "mem_gb": 16.0}), _on())

    assert made.warnings == ("train.py must save and resume itself: launcher.attach() is not used",)


def test_all_memory_of_a_node_may_be_asked_for(job: Make) -> None:
    """A node of 494,000 MB has 482.42 GB, and the partition is known to have 482.4: that is rounded."""
    plan(job(resources={"mem_gb": 482.42}), _on(mem_gb_per_node=482.4))
    with pytest.raises(ConfigError, match=r"asks for 482\.5 GB.*at most 482\.4"):
        plan(job(resources={"mem_gb": 482.5}), _on(mem_gb_per_node=482.4))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_time_s": 1800.0}, "allows 0:30:00"),
        ({"max_nodes": 1}, "allows 1 node a job"),
        ({"usable_nodes": 1}, "only 1 node of"),
        ({"up": False}, "is down"),
    ],
)
def test_limits_that_may_be_lifted_are_warnings(job: Make, changes: dict[str, Any], said: str) -> None:
    """A QOS may lift a limit, an administrator may mend a node: the job is planned, and the user is told."""
    made = plan(job(resources={"nodes": 2}), _on(**changes))

    assert any(said in w for w in made.warnings)


def test_silence_of_slurm_is_told(job: Make) -> None:
    """SLURM is here but does not answer: the plan goes on and says what is not known."""
    made = plan(job(), facts(slurm=SlurmFacts(found=True, silent="SLURM does not answer: busy.")))

    assert "SLURM does not answer: busy; its limits are not checked" in made.warnings


def test_gres_where_slurm_wants_it(job: Make) -> None:
    """Without select/cons_tres GPUs are asked for by --gres."""
    made = plan(
        job(resources={"gpus_per_node": 2}), facts(slurm=SlurmFacts(found=True, known=True, gpu_request="gres"))
    )

    assert "#SBATCH --gres=gpu:2" in made.sbatch


@pytest.mark.parametrize(
    ("known", "ages", "refused"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_job_is_queued_early_only_where_held_jobs_age(job: Make, known: bool, ages: bool, refused: bool) -> None:
    """It would gain nothing; a SLURM that does not answer says nothing of that."""
    slurm = SlurmFacts(found=True, known=known, site=SiteSpec(ages_held_jobs=ages))
    early = job(restart={"queue_early": True})
    if refused:
        with pytest.raises(ConfigError, match=r"restart.queue_early: SLURM does not age held jobs here"):
            plan(early, facts(slurm=slurm))
    else:
        assert plan(early, facts(slurm=slurm)).spec.restart.queue_early


def test_a_partition_that_slurm_does_not_show_is_told(job: Make) -> None:
    """A misspelt one is named with its neighbour before sbatch refuses it; of several, each by itself."""
    there = _on()
    there = replace(there, slurm=replace(there.slurm, partition=None, partitions=("main", "debug")))

    made = plan(job(slurm={"partition": "man,debug"}), there)

    assert 'SLURM shows no partition man; did you mean "main"?' in made.warnings
    assert not any("debug" in text for text in made.warnings)
