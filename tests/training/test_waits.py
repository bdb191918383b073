"""Which rank is slow: in lockstep all steps take equally long, the time that a rank waits for others tells."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import torch
from crew import Crew, make_spec

from launcher import Worker

LAG_S = 0.2


def limp(worker: Worker) -> None:
    """Rank 1 needs longer for every step."""
    model = worker.wrap(torch.nn.Linear(10, 2))
    for _ in range(12):
        time.sleep(LAG_S * worker.rank)
        model(torch.ones(4, 10)).sum().backward()
        worker.step()


def test_the_fast_rank_is_the_one_that_waits(tmp_path: Path) -> None:
    """Both report the same step time; without what it waited for the other, the slow one's is longer by its lag."""
    spec = make_spec(tmp_path / "run", "test_waits:limp", 2, kind="function")
    with Crew(spec, 2) as crew:
        crew.finish()
        told = {rank: [m for m in crew.messages("progress", rank) if m.get("wait_s") is not None] for rank in (0, 1)}

    assert all(told.values()), crew.logs()
    own = {rank: statistics.median(m["step_time_s"] - m["wait_s"] for m in words) for rank, words in told.items()}
    whole = {rank: statistics.median(m["step_time_s"] for m in words) for rank, words in told.items()}
    assert abs(whole[1] - whole[0]) < LAG_S / 2
    assert own[1] - own[0] > LAG_S / 2
