"""Since when a metric has not been finite, over the rounds of a run."""

from __future__ import annotations

from typing import Any

import pytest
from an_event import an_event

from launcher.run.not_finite_since import not_finite_since


def bad(step: int, until: int | None = None, metric: str = "loss") -> Any:
    """A metric that is not finite from a step on, or was until another."""
    return an_event("not_finite", step=step, metric=metric, value="nan", ranks=[], until=until)


def round_from(step: int | None) -> Any:
    """A round that resumes there."""
    return an_event("round_started", ranks=[], spares=[], resume_step=step)


@pytest.mark.parametrize(
    ("history", "since"),
    [
        ([], {}),
        ([round_from(None), bad(20), bad(7, metric="norm")], {"loss": 20, "norm": 7}),
        ([bad(20), bad(20, until=25)], {}),
        ([bad(20), bad(20, until=25), bad(40)], {"loss": 40}),
        ([bad(20), round_from(30), bad(31)], {"loss": 20}),
        ([bad(20), round_from(10)], {}),
        ([bad(20), round_from(None), bad(22)], {"loss": 22}),
    ],
)
def test_a_metric_is_bad_from_its_first_step_on(history: list[Any], since: dict[str, int]) -> None:
    """Until it is finite again, or a round begins before that step; a round that goes on from there tells of a later one."""
    assert not_finite_since(history) == since
