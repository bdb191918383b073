"""Which rank is slow: in lockstep all steps take equally long, the time that a rank waits for others tells."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest
import torch
from crew import Crew, make_spec
from torch.nn.parallel import DistributedDataParallel

from launcher import Worker

LAG_S = 0.2


def limp(worker: Worker, way: str) -> None:
    """Rank 1 needs longer for every step."""
    if way == "wrap":
        model = worker.wrap(torch.nn.Linear(10, 2))
    else:
        model = DistributedDataParallel(torch.nn.Linear(10, 2))
        worker.register(model=model)
    for _ in range(12):
        time.sleep(LAG_S * worker.rank)
        model(torch.ones(4, 10)).sum().backward()
        worker.step()


@pytest.mark.parametrize("way", ["wrap", "register"])
def test_the_fast_rank_is_the_one_that_waits(tmp_path: Path, way: str) -> None:
    """Both report the same step time; without what it waited for the other, the slow one's is longer by its lag."""
    spec = make_spec(tmp_path / "run", "test_waits:limp", 2, kind="function", params={"way": way})
    with Crew(spec, 2) as crew:
        crew.finish()
        told = {rank: [m for m in crew.messages("progress", rank) if m.get("wait_s") is not None] for rank in (0, 1)}

    assert all(told.values()), crew.logs()
    own = {rank: statistics.median(m["step_time_s"] - m["wait_s"] for m in words) for rank, words in told.items()}
    whole = {rank: statistics.median(m["step_time_s"] for m in words) for rank, words in told.items()}
    assert abs(whole[1] - whole[0]) < LAG_S / 2
    assert own[1] - own[0] > LAG_S / 2
