"""DDP's options, from a job's file to the object that reduces gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from planning import facts

from launcher.config.load import load_values
from launcher.run.spec import DdpSpec, RunSpec
from launcher.submission.plan import plan
from launcher.training.wrapping import wrap

USUAL = {
    "bucket_cap_mb": None,
    "static_graph": False,
    "find_unused_parameters": False,
    "gradient_as_bucket_view": True,
}


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def specified(folder: Path, said: dict[str, Any]) -> DdpSpec:
    """``distributed.ddp`` of a job as its nodes read it."""
    (folder / "train.py").write_text("print(1)\n")
    loaded = load_values({"script": "train.py", "distributed": {"ddp": said}}, folder)
    plan(loaded, facts()).spec.write(folder / "spec.json")
    return RunSpec.read(folder / "spec.json").ddp


class Layers(torch.nn.Module):
    """Four layers of a MiB of gradients each; the last one may be left out of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(512, 512, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor, depth: int = 4) -> torch.Tensor:
        """A number."""
        for layer in self.layers[:depth]:
            x = layer(x)
        return x.sum()


def step(ddp: Any, depth: int = 4) -> None:
    """One forward and backward pass."""
    ddp(torch.ones(1, 512), depth).backward()


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"bucket_cap_mb": 2},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"gradient_as_bucket_view": False},
    ],
    ids=lambda said: next(iter(said), "usual"),
)
def test_ddps_options_reach_the_reducer(tmp_path: Path, group: None, said: dict[str, Any]) -> None:
    """Each option is in the spec that nodes read and does its work in the wrapped model; the others keep their defaults."""
    options = specified(tmp_path, said)
    ddp: Any = wrap(Layers(), torch.device("cpu"), options)
    sizes: list[int] = []

    def hook(_, bucket):  # torch reads annotations, and takes none that are text
        sizes.append(bucket.buffer().nbytes // 2**20)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    ddp.register_comm_hook(None, hook)
    step(ddp)
    told = ddp._get_ddp_logging_data()
    storages = {p.grad.untyped_storage().data_ptr() for p in ddp.parameters()}

    expected = {**USUAL, **said}
    assert {name: getattr(options, name) for name in USUAL} == expected
    assert (told.get("static_graph", 0), told["find_unused_parameters"]) == (
        expected["static_graph"],
        expected["find_unused_parameters"],
    )
    assert (sum(sizes), max(sizes)) == (4, expected["bucket_cap_mb"] or 3)  # the first of 25 MB's buckets is small
    assert len(storages) == (len(sizes) if expected["gradient_as_bucket_view"] else 4)


@pytest.mark.parametrize("unused", [True, False])
def test_unused_parameters_are_found_only_where_asked(tmp_path: Path, group: None, unused: bool) -> None:
    """Steps that leave out a layer go on with find_unused_parameters; without, DDP says so at the second."""
    ddp = wrap(Layers(), torch.device("cpu"), specified(tmp_path, {"find_unused_parameters": unused}))
    step(ddp, depth=3)

    with contextlib.nullcontext() if unused else pytest.raises(RuntimeError, match="find_unused_parameters"):
        step(ddp, depth=3)
