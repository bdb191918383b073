"""DDP's options, from a job's file to the object that reduces gradients; the order in which that one reduces them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from lightning_fabric.wrappers import _FabricModule
from planning import facts, load_values
from torch.nn.parallel import DistributedDataParallel

from launcher.run.spec import DdpSpec, RunSpec
from launcher.submission.plan.plan import plan
from launcher.training.ddp import wrapping
from launcher.training.ddp.wrapping import pin, replicas, wrap

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


def reduced(ddp: Any) -> list[list[list[str]]]:
    """The buckets of three steps, in the order in which they were reduced, each by its parameters' names."""
    names = {parameter: name for name, parameter in ddp.module.named_parameters()}
    seen: list[list[str]] = []

    def hook(_, bucket):
        seen.append([names[parameter] for parameter in bucket.parameters()])
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    ddp.register_comm_hook(None, hook)
    steps = []
    for _ in range(3):
        seen.clear()
        step(ddp)
        steps.append(list(seen))
    return steps


@pytest.mark.parametrize("said", [{}, {"bucket_cap_mb": 2}, {"find_unused_parameters": True}], ids=str)
def test_pinned_buckets_are_those_of_torchs_later_steps(tmp_path: Path, group: None, said: dict[str, Any]) -> None:
    """Pinned by `pin` or `wrap`, every step reduces the buckets that torch comes to itself, the last layer's first."""
    usual, pinned = (DistributedDataParallel(Layers(), **said) for _ in range(2))
    assert pin(pinned) == ""
    expected = reduced(usual)[1:]
    wrapped: Any = wrap(Layers(), torch.device("cpu"), specified(tmp_path, said))

    assert reduced(pinned) == reduced(wrapped) == [expected[0], *expected]
    assert "layers.3.weight" in expected[0][0]


def test_a_pinned_models_old_reducer_hears_nothing_more(group: None) -> None:
    """The reducer that torch had made waits for gradients and reduces none; pinned again, nothing is done."""
    ddp = DistributedDataParallel(Layers())
    old, seen = ddp.reducer, []

    def hook(_, bucket):
        seen.append(bucket)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    dist._register_comm_hook(old, None, hook)  # type: ignore[attr-defined]
    assert pin(ddp) == ""
    new = ddp.reducer
    old.prepare_for_backward([])
    step(ddp)

    assert seen == []
    assert pin(ddp) == ""
    assert ddp.reducer is new


def hooked(ddp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are compressed by a hook of torch's own."""
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)


def run_forward(ddp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its backward pass is still to come."""
    ddp(torch.ones(1, 512))


def hidden(ddp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another torch."""
    monkeypatch.setattr(wrapping, "_PRIVATE", ((DistributedDataParallel, ("_no_such_name",)),))


def reduced_in_python(ddp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch._dynamo.config.optimize_ddp asks for."""
    monkeypatch.setattr(ddp, "_use_python_reducer", True)


def mixed(ddp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As DDP notes it."""
    monkeypatch.setattr(ddp, "mixed_precision", object())


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (hooked, "a communication hook"),
        (run_forward, "a forward pass"),
        (hidden, "this version of torch does not show"),
        (reduced_in_python, "python_reducer"),
        (mixed, "mixed_precision"),
    ],
)
def test_what_keeps_buckets_from_being_pinned_is_named(
    group: None, monkeypatch: pytest.MonkeyPatch, happens: Any, why: str
) -> None:
    """The reason, and a model that is as it was: its reducer is the one that torch made."""
    ddp = DistributedDataParallel(Layers())
    happens(ddp, monkeypatch)
    reducer = ddp.reducer

    assert why in pin(ddp)
    assert ddp.reducer is reducer


def test_passes_without_gradients_do_not_keep_buckets_from_being_pinned(group: None) -> None:
    """An evaluation before the first step, and a backward pass under no_sync, build nothing that a resume would lack."""
    ddp = DistributedDataParallel(Layers())
    with torch.no_grad():
        ddp(torch.ones(1, 512))
    with ddp.no_sync():
        step(ddp)

    assert pin(ddp) == ""


def test_models_inside_wrappers_of_other_libraries_are_found(group: None) -> None:
    """torch.compile around and inside DDP, Fabric's module, a model of two DDPs; a module without one has none."""
    one, two = (DistributedDataParallel(Layers()) for _ in range(2))
    around: Any = torch.compile(one, backend="eager")
    fabrics = _FabricModule(one, None, original_module=one.module)  # type: ignore[arg-type]

    assert replicas(one) == replicas(around) == replicas(fabrics) == [one]
    assert replicas(torch.nn.ModuleList([two, one])) == [two, one]
    assert replicas(one.module) == replicas(torch.optim.SGD(one.parameters())) == []
