"""Each rank writes down what its device's generator draws at each step.

The last steps of the first round take long, so that the rank that is killed then is at work.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch

STEPS = 40


def main(worker: Any) -> None:
    """Draw at each step. A step's number is drawn again by a round that does the step again."""
    torch.manual_seed(worker.rank)  # as a user would seed each rank
    model = torch.nn.Linear(1, 1).to(worker.device)
    worker.register(model=worker.wrap(model))
    with (worker.run_dir / "draws").open("a", buffering=1) as file:
        for step in worker.steps(STEPS):
            value = torch.rand((), device=worker.device).item()
            file.write(f"{worker.rank} {step} {value!r}\n")
            time.sleep(1.0 if step >= STEPS // 2 and os.environ["LAUNCHER_ROUND"] == "0" else 0.05)
