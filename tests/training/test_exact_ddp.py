"""Scripts that make their own DistributedDataParallel: registered, it resumes bit for bit, and stays what torch made it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from crew import interrupted, make_spec, run, script_spec
from torch.nn.parallel import DistributedDataParallel

from launcher import Worker
from launcher.run.worker_texts import UNORDERED
from launcher.training.checkpoint.checkpoint_digest import digest_checkpoint
from launcher.training.ddp.wrapping import is_exact

SCRIPT = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import launcher

dist.init_process_group("gloo")
run = launcher.attach()
torch.manual_seed(0)
layers = torch.nn.Linear(10, 200), torch.nn.ReLU(), torch.nn.Linear(200, 50), torch.nn.Linear(50, 2)
{make}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
run.register(model={registered}, optimizer=optimizer)
torch.manual_seed(dist.get_rank())
for _ in run.steps(6):
    loss = model(torch.randn(16, 10)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
"""
MAKE = "model = DistributedDataParallel(torch.nn.Sequential(*layers){options})"


def script(make: str = MAKE.format(options=""), registered: str = "model") -> str:
    """A script's text."""
    return SCRIPT.format(make=make, registered=registered)


@pytest.mark.parametrize(
    "make",
    [
        MAKE.format(options=""),
        MAKE.format(options=", static_graph=True, gradient_as_bucket_view=True"),
        f"{MAKE.format(options='')}\nmodel = torch.compile(model, backend='eager')",
    ],
    ids=["plain", "static graph", "compiled"],
)
def test_a_scripts_own_ddp_resumes_bit_for_bit(tmp_path: Path, make: str) -> None:
    """Three ranks, whose sums depend on the buckets: the resumed run ends with the same bits; nobody warns."""
    full, again = interrupted(tmp_path, script(make))

    assert digest_checkpoint(again.committed[-1]) == digest_checkpoint(full.committed[-1])


ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = accelerator.prepare(torch.nn.Sequential(*layers))
"""


def test_an_accelerate_script_resumes_bit_for_bit(tmp_path: Path) -> None:
    """What `Accelerator.prepare` makes of a model and an optimizer is registered as it is, on three ranks."""
    made = "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)"
    full, again = interrupted(tmp_path, script(ACCELERATE).replace(made, f"accelerator.prepare({made})"))

    assert digest_checkpoint(again.committed[-1]) == digest_checkpoint(full.committed[-1])


HOOKED = f"""
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
{MAKE.format(options="")}
model.register_comm_hook(None, allreduce_hook)
"""


@pytest.mark.parametrize(
    ("make", "registered", "ranks", "values", "why"),
    [
        (HOOKED, "model", 3, {}, "a communication hook was set before"),
        (MAKE.format(options=""), "model.module", 3, {"stop_after_steps": 4}, "not given the DistributedDataParallel"),
        (HOOKED, "model", 2, {"stop_after_steps": 4}, None),
    ],
    ids=["cannot be done", "the drill of what register did not see", "two ranks"],
)
def test_what_stays_inexact_is_told_once(
    tmp_path: Path, make: str, registered: str, ranks: int, values: dict[str, Any], why: str | None
) -> None:
    """One warning of all ranks, with the reason and run.wrap; two ranks' sums have one order, and no warning."""
    crew = run(script_spec(tmp_path / "run", script(make, registered), ranks, **values), ranks)

    told = [message["text"] for message in crew.messages("warning")]
    assert len(told) == (0 if why is None else 1), told
    assert all(text.startswith(UNORDERED) and str(why) in text and "run.wrap(model)" in text for text in told)


class Branches(torch.nn.Module):
    """Batch norm's buffers, and a layer that a step may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(torch.nn.Linear(8, 300), torch.nn.BatchNorm1d(300), torch.nn.ReLU())
        self.extra = torch.nn.Linear(300, 300)
        self.last = torch.nn.Linear(300, 1)

    def forward(self, x: torch.Tensor, extra: bool) -> torch.Tensor:
        """A number."""
        x = self.first(x)
        return self.last(self.extra(x) if extra else x).square().mean()


def numbers(model: Any, ddp: Any, x: torch.Tensor, *, unused: bool, inputs: int) -> list[torch.Tensor]:
    """Gradients and buffers after passes with and without synchronisation, the last ones under ``join``."""
    for step in range(3):
        model(x + step, not (unused and step == 1)).backward()
    with ddp.no_sync():
        model(x, True).backward()
    with ddp.join():
        for step in range(inputs):
            model(x - step, True).backward()
    return [*(p.grad for p in ddp.parameters()), *(b.float() for b in ddp.buffers())]


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "small views": {"gradient_as_bucket_view": True, "bucket_cap_mb": 1},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True, "gradient_as_bucket_view": True},
    "compiled": {},
    "compiled inside": {},
}


def equals_torchs(worker: Worker) -> None:
    """Compares registered models with twins that torch alone has made. Raises AssertionError."""
    torch.manual_seed(worker.rank)
    x = torch.randn(16, 8)
    for name, options in OPTIONS.items():
        found = []
        for registered in (False, True):
            torch.manual_seed(0)
            inside: Any = Branches()
            ddp = DistributedDataParallel(
                torch.compile(inside, backend="eager") if name == "compiled inside" else inside, **options
            )
            model: Any = torch.compile(ddp, backend="eager") if name == "compiled" else ddp
            if registered:
                worker.register(**{name: model})
                assert is_exact(ddp)
            # Uneven inputs, where torch's join takes them: static graphs and compiled models have one each.
            inputs = 1 if name not in ("plain", "small views", "unused") else 1 + worker.rank
            found.append(numbers(model, ddp, x, unused=name == "unused", inputs=inputs))
        torch.testing.assert_close(*found)


def test_a_registered_ddp_computes_what_torchs_own_does(tmp_path: Path) -> None:
    """Gradients and buffers equal an untouched twin's on three ranks: no_sync, join, unused layers, static graph, compiled."""
    spec = make_spec(tmp_path / "run", "test_exact_ddp:equals_torchs", 3, kind="function")

    run(spec, 3)
