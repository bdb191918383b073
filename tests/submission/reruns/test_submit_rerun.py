"""What a run takes from the hold in whose allocation it is to train, and what it is refused for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from planning import facts

from launcher.config.load.load import LoadedJob
from launcher.errors import ConfigError
from launcher.run.spec import RunSpec
from launcher.submission.plan.plan import plan
from launcher.submission.reruns.submit_rerun import _in_hold

Make = Callable[..., LoadedJob]
IMAGE = {"container": "/images/lab.sif", "python": "/opt/python"}


def held(job: Make, **values: Any) -> RunSpec:
    """The spec of a hold."""
    return plan(job(**values), facts(run_id="hold-lab", hold=True)).spec


def rerun(job: Make, hold: RunSpec, **values: Any) -> RunSpec:
    """The spec of a run that trains in it."""
    return _in_hold(plan(job(**values), facts()), hold).spec


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"environment": {**IMAGE, "container_args": ["--bind", "/other"]}}, "environment.container_args: "),
        ({"environment": IMAGE}, "environment.container_args: "),
        (
            {"code": {"link": ["data", "lab"]}},
            "code.link: /home/ann/resnet/lab is not mounted in the container of hold-lab",
        ),
        ({"code": {"snapshot": False}}, "code.snapshot: /home/ann/resnet is not mounted in the container of hold-lab"),
        ({"code": {"link": ["./data/"]}}, ""),
        ({"code": {}}, ""),
    ],
)
def test_its_container_is_the_holds_with_all_that_is_mounted(job: Make, values: dict[str, Any], said: str) -> None:
    """The agents are in it since the hold began: other arguments and folders would be left out without a word."""
    own = {"environment": {**IMAGE, "container_args": ["--bind", "/data"]}, "code": {"link": ["data"]}}
    hold = held(job, **own)
    if not said:
        assert rerun(job, hold, **{**own, **values}).held_by == "hold-lab"
        return
    with pytest.raises(ConfigError, match=f"{said}.*take a new hold"):
        rerun(job, hold, **{**own, **values})


def test_without_a_container_links_may_change(job: Make) -> None:
    """They are links in the rerun's own copy of the code."""
    assert rerun(job, held(job), code={"link": ["data"]}).held_by == "hold-lab"


@pytest.mark.parametrize(("wanted", "nodes", "spares"), [("2-4", 4, 0), ("2-3", 3, 0), ("1-2", 2, 1), (2, 2, 1)])
def test_a_range_in_a_smaller_hold_trains_with_the_same_samples_a_step(
    job: Make, wanted: int | str, nodes: int, spares: int
) -> None:
    """The global batch is that of the range's upper end, as where SLURM gives fewer nodes; a resubmit would go on with another."""
    hold = held(job, resources={"nodes": 3})
    spec = rerun(job, hold, resources={"nodes": wanted, "spare_nodes": 2})

    assert (spec.nodes, spec.spare_nodes) == (nodes, spares)
    with pytest.raises(ConfigError, match=r"resources\.nodes: the job asks for 4 nodes, hold-lab has 3"):
        rerun(job, hold, resources={"nodes": "4-5"})
