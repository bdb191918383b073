"""A function as users have them; each round plants the next case."""

from __future__ import annotations

import time

import all_cases  # noqa: F401
import torch
from cases import Planter, exchange

import launcher


def train(worker: launcher.Worker, names: list[str]) -> None:
    """Steps of 20 ms, an all-reduce in each: who waits for a rank that hangs makes no progress."""
    planter = Planter(names)
    live = planter.case is not None and planter.case.live
    model = worker.wrap(torch.nn.Linear(8, 1))  # the waits that distinguish a slow rank are DDP's
    if names[0] == "steady" or "a save" in names[0]:
        worker.register(model=model)
    for step in range(planter.steps):
        loss = planter.before(step, worker.rank, worker.world_size) if live else planter.before(step, worker)
        time.sleep(0.02)
        exchange(model, planter.case)
        worker.step(loss=1.0 / (step + 1) if loss is None else loss)
