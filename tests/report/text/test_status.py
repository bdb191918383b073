"""Facts about single rows of `launcher status` and figures of the page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from an_event import an_event

from launcher.report.model.summary import RunSummary
from launcher.report.page.page import mean_speed
from launcher.report.text.status import labelled


def test_the_time_in_the_queue_counts_from_the_last_hand_over() -> None:
    """Requeued five minutes ago after three days of training: it has not waited for three days."""
    day = 86400.0
    one = RunSummary(run="r", name="r", dir="/r", state="pending", backend="slurm", submitted=0.0, queued=3 * day)

    assert labelled(one, 3 * day + 300, wrong=[])["waiting"] == "5 min in the queue"


@pytest.mark.parametrize(("first", "speed"), [(90_000, 1.0), (None, 91.0)])
def test_the_mean_speed_counts_the_runs_own_steps(first: int | None, speed: float) -> None:
    """A run that began from step 90,000 of another one has made 1,000 steps itself, in 1,000 s."""
    begun = an_event("round_started", attempt=0, round=0, resume_step=first)
    run: Any = SimpleNamespace(
        summary=SimpleNamespace(step=91_000),
        book=SimpleNamespace(seconds={"useful": 1000.0}),
        history=SimpleNamespace(of=lambda *_: iter([begun])),
    )

    assert mean_speed(cast("Any", run)) == pytest.approx(speed)
