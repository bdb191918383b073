"""The loops of docs/scripts.md, as they stand there: they run without a warning and resume bit for bit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from crew import interrupted

from launcher.training.checkpoint.checkpoint_digest import digest_checkpoint

PAGE = Path(__file__).parents[3] / "docs" / "scripts.md"

BEFORE = """
import torch
import torch.distributed as dist

import launcher

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 50))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
run = launcher.attach()
torch.manual_seed(dist.get_rank())


def get_batch():
    return torch.randn(16, 10), torch.randn(16, 50)


"""
STEP = """    x, y = get_batch()
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("loop", ["run.step(loss=loss)  #", "ahead = Ahead()"])
def test_the_pages_loops_resume_bit_for_bit_without_a_warning(tmp_path: Path, loop: str) -> None:
    """The short one, with a body, and the one that fetches ahead: three ranks end with the bits of the undisturbed run."""
    (block,) = (
        b for b in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL) if loop in b
    )
    text = BEFORE + block.replace("10_000", "6").replace("    ...\n", STEP) + "dist.destroy_process_group()\n"
    full, again = interrupted(tmp_path, text)

    assert digest_checkpoint(again.committed[-1]) == digest_checkpoint(full.committed[-1])
    assert full.messages("metrics", 0)[-1]["metrics"]["loss"] > 0
