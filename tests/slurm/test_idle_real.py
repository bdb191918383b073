"""An allocation on a real cluster in which nothing progresses any more is given back; one that evaluates is left alone."""

from __future__ import annotations

import json

import pytest
from login import LIMIT_S, Login

from launcher.run.files import read_lines
from launcher.run.state import read_outcome

pytestmark = pytest.mark.slurm

CODE = """
import time
import torch

def slow(model, batch):
    time.sleep(EVALUATE_S)
    return {"loss": 1.0}

EVALUATE_S = 15.0

def train(worker):
    model = torch.nn.Linear(1, 1)
    for step in range(3):
        worker.step(loss=1.0)
    worker.evaluate(model, [0.0] * worker.world_size, 1, slow)
    worker.step(loss=1.0)
    time.sleep(3600)
"""
JOB = {
    "name": "lazy", "function": "lazy:train", "preflight": False, "checkpoint": {"enabled": False},
    "restart": {"idle_timeout_min": 0.1, "hang_detection": False},
    "resources": {"nodes": 2, "spare_nodes": 1, "timeout_min": 10},
}  # fmt: skip


@pytest.mark.long
def test_an_idle_allocation_is_given_back(place: Login) -> None:
    """Six seconds after the last step, not in the fifteen of the evaluation: one sentence, and the spare is in the ledger."""
    (place.folder / "lazy.py").write_text(CODE)
    (place.folder / "lazy.yaml").write_text(json.dumps(JOB))
    place.launcher("submit", "lazy.yaml")
    paths = place.run("lazy")
    job_id = place.job_id(paths)
    place.cluster.wait(lambda: read_outcome(paths.outcome), "the end", limit_s=LIMIT_S)
    place.cluster.wait_job(job_id, "FAILED")

    outcome = read_outcome(paths.outcome) or {}
    assert (outcome["state"], outcome["step"]) == ("failed", 4)
    assert outcome["reason"] == (
        "No progress for 0.1 minutes (restart.idle_timeout_min); the allocation was given back."
    )
    told = read_lines(paths.events)
    (evaluated,) = (e for e in told if e["type"] == "evaluated")
    (asked,) = (e for e in told if e["type"] == "stop_requested")
    assert 5 < asked["t"] - evaluated["t"] < 60
    status = json.loads(place.launcher("status", paths.id, "--json").stdout)
    book = status["ledger"]
    held_s = sum(seconds for kind, seconds in book["seconds"].items() if kind not in ("queued", "away"))
    assert book["node_hours"] == pytest.approx(3 * held_s / 3600)
    assert "made no progress for 0.1 minutes" in place.launcher("why", paths.id).stdout
