"""Scripts that make their own DistributedDataParallel: registered, it resumes bit for bit, and stays what torch made it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from crew import Crew, interrupted, make_spec, run, script_spec
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from launcher import Worker
from launcher.run.spec import CheckpointSpec
from launcher.run.worker_texts import UNORDERED
from launcher.training.checkpoint.checkpoint_digest import digest_checkpoint
from launcher.training.ddp.wrapping import is_exact, shared_buffers

EVERY = CheckpointSpec(interval_steps=1, keep_last=1000)

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


def normed_data(length: int, seed: int) -> TensorDataset:
    """Inputs and targets."""
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(length, 8, generator=generator), torch.randn(length, 1, generator=generator))


def mse(model: Any, batch: Any) -> torch.Tensor:
    """The loss of a batch."""
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def evaluates_norms(worker: Worker, *, how: str) -> None:
    """Batch norm, whose statistics differ on each rank, and a scheduler that heeds what `evaluate` returns."""
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    model = DistributedDataParallel(net) if how == "registered" else worker.wrap(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.0)
    worker.register(model=model, optimizer=optimizer, scheduler=scheduler)
    train, test = normed_data(96, 5), normed_data(20, 6)

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        mse(model, batch).backward()
        optimizer.step()

    def measure() -> None:
        loss = worker.evaluate(model, test, 5, lambda *args: {"loss": mse(*args)})["loss"]
        if worker.is_leader:
            print("loss", worker.steps_done, loss, flush=True)
        scheduler.step(loss)

    if how == "steps":
        for number in worker.steps(9):
            if number and number % 3 == 0:
                measure()
            first = 16 * (number % 6) + 8 * worker.rank
            step([tensor[first : first + 8] for tensor in train.tensors])
        return
    for _ in worker.epochs(3):
        for batch in worker.batches(train if how == "break" else normed_data(48, 5), 8):
            step(batch)
            if how == "break" and (worker.steps_done + 1) % 3 == 0:
                break
        measure()


def losses_of(crew: Crew) -> list[str]:
    """What rank 0 measured."""
    return re.findall("^loss .*", (crew.paths.root / "rank-0.log").read_text(), re.MULTILINE)


@pytest.mark.parametrize("how", ["registered", "steps", "break"])
def test_an_evaluation_measures_with_rank_0s_buffers_on_every_rank(tmp_path: Path, how: str) -> None:
    """As a resumed run does, whose ranks all have them from the checkpoint: of a DDP of one's own, between steps, behind `break`."""
    spec = make_spec(
        tmp_path / "full", "test_exact_ddp:evaluates_norms", 2, kind="function", params={"how": how}, checkpoint=EVERY
    )
    full = run(spec, 2)
    losses = losses_of(full)
    assert len(losses) == (2 if how == "steps" else 3)

    for at in (3, 6):
        spec = make_spec(tmp_path / f"{at}", "test_exact_ddp:evaluates_norms", 2, kind="function", params={"how": how})
        again = run(spec, 2, resume=full.paths.checkpoint(at))
        assert losses_of(again) == losses[at // 3 - 1 :]
        assert digest_checkpoint(again.committed[-1]) == digest_checkpoint(full.committed[-1])


def test_buffers_that_ddp_leaves_to_each_rank_are_left(tmp_path: Path) -> None:
    """Without broadcast_buffers, of a group of fewer ranks, and those that DDP was told to ignore."""
    run(make_spec(tmp_path / "run", "test_exact_ddp:lists_buffers", 2, kind="function"), 2)


def lists_buffers(worker: Worker) -> None:
    """What is shared of which model. Raises AssertionError."""
    groups = [dist.new_group([rank]) for rank in range(worker.world_size)]
    partly = Branches()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(partly, ["first.1.running_mean"])
    options: list[dict[str, Any]] = [{}, {"broadcast_buffers": False}, {"process_group": groups[worker.rank]}]
    models = [*(DistributedDataParallel(Branches(), **values) for values in options), DistributedDataParallel(partly)]

    assert [len(shared_buffers(model)) for model in models] == [3, 0, 0, 2]
