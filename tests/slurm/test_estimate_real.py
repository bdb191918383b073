"""`plan --estimate` against a real scheduler: which partition and how many nodes would finish first."""

from __future__ import annotations

import json
import time

import pytest
from login import Login

pytestmark = pytest.mark.slurm


def test_what_starts_first_comes_first_and_nothing_is_submitted(place: Login) -> None:
    """One partition is busy for half an hour, the other may preempt it, and nine nodes do not exist: said in that order."""
    cluster = place.cluster
    ask = ("--exclusive", "--nodes=4", "--partition=batch", "--time=30", "--output=/dev/null")
    blocker = cluster.sbatch(*ask, wrap="sleep 3600")
    cluster.wait_job(blocker, "RUNNING")
    words = [
        "plan",
        "train.py",
        "resources.timeout_min=10",
        "--estimate",
        "--nodes",
        "2,9",
        "--partitions",
        "batch,high",
    ]

    found = json.loads(place.launcher(*words, "--json").stdout)

    now = time.time()
    first, second, *never = found
    assert (first["partition"], first["nodes"]) == ("high", 2)
    assert first["start_t"] - now < 120
    assert (second["partition"], second["nodes"]) == ("batch", 2)
    assert 1200 < second["start_t"] - now < 2400
    assert [(e["nodes"], e["start_t"]) for e in never] == [(9, None), (9, None)]
    assert all(e["why"] for e in never)
    assert cluster.run(["squeue", "-h", "-o", "%i"]).stdout.split() == [blocker]
    table = place.launcher(*words).stdout.splitlines()
    assert [line.split()[:2] for line in table[1:3]] == [["high", "2"], ["batch", "2"]]
    assert table[-1] == "no run of train has measured a speed yet, so only the start is estimated"
