"""The scripts of docs/scripts.md do what the page says of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.fsdp
from crew import Crew, make_spec, run
from fsdp2 import needs_fsdp2

from launcher.run.spec import CheckpointSpec
from launcher.training.checkpoint.checkpoint_digest import digest_checkpoint

PAGE = (Path(__file__).parents[2] / "docs" / "scripts.md").read_text()


def example(heading: str) -> str:
    """The first Python block below a heading of the page."""
    below = PAGE.partition(f"# {heading}\n")[2]
    found = re.search(r"^```python\n(.*?)^```", below, re.MULTILINE | re.DOTALL)
    assert found, f"{heading}: no such section, or no example in it"
    return found[1]


def spec_of(tmp_path: Path, text: str, name: str = "run", **values: Any) -> Any:
    """Two ranks of a script that holds ``text``."""
    (tmp_path / "code").mkdir(exist_ok=True)
    (tmp_path / "code" / "train.py").write_text(text)
    values.setdefault("checkpoint", CheckpointSpec(interval_min=1000))
    return make_spec(tmp_path / name, "train.py", 2, kind="script", code_dir=str(tmp_path / "code"), **values)


def state(path: Path) -> dict[str, str]:
    """Digests of what was trained: random numbers that a script does not seed (Python's) differ from run to run."""
    return {part: its for part, its in digest_checkpoint(path).items() if part not in ("rng", "all")}


@needs_fsdp2
def test_the_dcp_example_resumes_exactly(tmp_path: Path) -> None:
    """Stopped in its middle and resumed, the page's FSDP2 script ends with the state of an undisturbed run."""
    text = example("FSDP2 and DCP: a complete script")
    whole = run(spec_of(tmp_path, text, "whole"), 2)
    step = 40
    with Crew(spec_of(tmp_path, text, "halves"), 2, first=[{"type": "stop", "step": step, "save": True}]) as first:
        assert {(word["type"], word["step"]) for word in first.finish().values()} == {("stopped", step)}, first.logs()
    second = run(spec_of(tmp_path, text, "halves"), 2, resume=first.paths.checkpoint(step), attempt=1)

    assert [path.name for path in second.committed] == [path.name for path in whole.committed] == ["step-00000100"]
    assert state(second.committed[-1]) == state(whole.committed[-1])
    assert state(first.paths.checkpoint(step)) != state(whole.committed[-1])


@needs_fsdp2
def test_the_dcp_example_with_no_step_left(tmp_path: Path) -> None:
    """Resumed from its last step it trains nothing, saves nothing and ends well."""
    text = example("FSDP2 and DCP: a complete script").replace("STEPS = 100", "STEPS = 3")
    path = run(spec_of(tmp_path, text), 2).paths.checkpoint(3)
    again = run(spec_of(tmp_path, text), 2, resume=path, attempt=1)

    assert {m["step"] for m in again.messages("finished")} == {3}
    assert again.committed == []


SAMPLES = """
import itertools, random
import numpy
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
import launcher

dist.init_process_group("gloo")
run = launcher.attach()
random.seed(0), numpy.random.seed(0), torch.manual_seed(0)
x = torch.randn(130, 4)
dataset, epochs = TensorDataset(x, x.sum(1, keepdim=True)), 10
sampler = DistributedSampler(dataset)
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
run.register(model=model, optimizer=optimizer)
PAGE
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.step(loss=loss.item())
dist.destroy_process_group()
"""


def test_the_loop_over_samples_resumes_exactly(tmp_path: Path) -> None:
    """Resumed in the middle of an epoch, the page's loop ends with weights, moments and random numbers as undisturbed."""
    loop = example("4. Continue in the middle of an epoch").rstrip().removesuffix("    ...")
    text = SAMPLES.replace("PAGE\n", loop)
    spec = spec_of(tmp_path, text, checkpoint=CheckpointSpec(interval_steps=7, interval_min=None))
    whole = run(spec, 2)
    end = digest_checkpoint(whole.paths.checkpoint(30))
    again = run(spec, 2, resume=whole.paths.checkpoint(7), attempt=1)

    assert {m["step"] for m in again.messages("finished")} == {30}
    assert digest_checkpoint(again.paths.checkpoint(30)) == end


WRAPPED = """
import torch
import torch.distributed as dist
import launcher

dist.init_process_group("gloo")
run = launcher.attach()
model = torch.nn.Linear(4, 1)
COMPILE
model = torch.nn.parallel.DistributedDataParallel(model)
run.register(model=model)
for step in run.steps(2):
    pass
dist.destroy_process_group()
"""


@pytest.mark.parametrize("line", ["model = torch.compile(model, backend='eager')", "model.compile(backend='eager')"])
def test_a_checkpoint_fits_the_plain_model(tmp_path: Path, line: str) -> None:
    """Registered inside DDP and torch.compile, its keys have no prefix; the page's lines load them."""
    run(spec_of(tmp_path, WRAPPED.replace("COMPILE", line)), 2)
    model = torch.nn.Linear(4, 1)
    lines = example("Loading a checkpoint elsewhere").replace("step-00010000", "step-00000002")
    exec(lines, {"torch": torch, "model": model, "run_dir": tmp_path / "run"})

    state = torch.load(tmp_path / "run" / "checkpoints" / "step-00000002" / "state.pt")
    assert list(state["objects"]["model"]) == ["weight", "bias"]
    assert model.weight.equal(state["objects"]["model"]["weight"])
