"""Optimizers and schedulers inside the wrappers of other libraries: hooked, saved and resumed, or refused in a sentence."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.tensor
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import LightningEnvironment
from pytorch_lightning.core.optimizer import LightningOptimizer

from launcher.training.checkpoint.digest import digest
from launcher.training.checkpoint.plain import to_plain
from launcher.training.checkpoint.registered import Registered
from launcher.training.ddp.optimizers import restore_dtypes
from launcher.training.process.place import WorkerPlace
from launcher.training.process.rehearsal import unregistered


@pytest.fixture(autouse=True)
def accelerator() -> Iterator[Accelerator]:
    """One that nothing of an earlier test is left in."""
    yield Accelerator(cpu=True)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


class Descent(torch.optim.SGD):
    """A name of its own: other tests of this process may have left optimizers alive."""


def missed(registered: list[Any]) -> list[str]:
    """What the drill names of this file's objects."""
    return [text for text in unregistered(registered) if "Descent" in text or "Accelerated" in text or "Scaler" in text]


class HalfOptimizer:
    """As apex's FP16_Optimizer: trains copies of the weights of its own, with a loss scale that is part of its state."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.loss_scale = optimizer, 1.0
        group = optimizer.param_groups[0]
        self.weights = group["params"]
        self.copies = group["params"] = [torch.nn.Parameter(p.detach().clone()) for p in self.weights]

    @property
    def state(self) -> Any:
        """The optimizer's own."""
        return self.optimizer.state

    def zero_grad(self) -> None:
        """Of the model's weights."""
        for weight in self.weights:
            weight.grad = None

    def step(self) -> None:
        """On the copies, which the weights then follow."""
        for weight, copied in zip(self.weights, self.copies, strict=True):
            copied.grad = weight.grad * self.loss_scale
        self.optimizer.step()
        for weight, copied in zip(self.weights, self.copies, strict=True):
            weight.data.copy_(copied)
        self.loss_scale *= 0.5

    def state_dict(self) -> dict[str, Any]:
        """All three."""
        return {"scale": self.loss_scale, "copies": self.copies, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """All three."""
        self.loss_scale = state["scale"]
        for copied, saved in zip(self.copies, state["copies"], strict=True):
            copied.data.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])


def lightnings(optimizer: torch.optim.Optimizer) -> Any:
    """Lightning's wrapper, with a strategy that only steps."""
    wrapper: Any = LightningOptimizer(optimizer)
    wrapper._strategy = SimpleNamespace(optimizer_step=lambda inner, closure, **_: inner.step(closure))
    return wrapper


def fabrics(optimizer: torch.optim.Optimizer) -> Any:
    """Fabric's wrapper."""
    fabric = Fabric(
        accelerator="cpu", devices=1, plugins=LightningEnvironment()
    )  # else it asks for srun where there is one
    model = torch.nn.Linear(1, 1)
    model.weight, model.bias = optimizer.param_groups[0]["params"]
    return fabric.setup(model, optimizer)[1]


WRAPPERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "bare": lambda optimizer: optimizer,
    "Accelerate": lambda optimizer: Accelerator(cpu=True).prepare(optimizer),
    "Lightning": lightnings,
    "Fabric": fabrics,
    "apex": HalfOptimizer,
}


def registry(settle: Callable[[], None] = lambda: None) -> Registered:
    """What a worker keeps of what is registered."""
    return Registered(WorkerPlace(), torch.device("cpu"), settle=settle, watch=lambda _: None)


def made(wrapper: str) -> tuple[torch.nn.Module, Any]:
    """A model, the same every time, and its wrapped optimizer, which has a state."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    return model, WRAPPERS[wrapper](Descent(model.parameters(), lr=0.1, momentum=0.9))


def step(model: torch.nn.Module, optimizer: Any) -> None:
    """One step, as a user writes it."""
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapped_optimizer_is_hooked_saved_and_resumed(wrapper: str) -> None:
    """`settle` is called before each step of the optimizer inside; what is saved goes on bit for bit, momentum and scale."""
    settled: list[list[float]] = []
    model, optimizer = made(wrapper)
    before = registry(lambda: settled.append(model.weight.flatten().tolist()))
    before.add({"model": model, "optimizer": optimizer}, per_rank=False)
    initial = model.weight.flatten().tolist()
    step(model, optimizer)
    step(model, optimizer)
    assert [weights == initial for weights in settled] == [True, False]

    saved = {name: thing.state_dict() for name, thing in before.shared.items()}
    resumed, other = made(wrapper)
    after = registry()
    after.loaded = torch.utils._pytree.tree_map(lambda x: x.clone() if torch.is_tensor(x) else x, {"objects": saved})
    after.add({"model": resumed, "optimizer": other}, per_rank=False)
    for one, its in ((model, optimizer), (resumed, other)):
        step(one, its)

    assert torch.equal(model.weight, resumed.weight)
    assert missed([*before.shared.values(), *after.shared.values()]) == []


class Uninitialised(torch.optim.Optimizer):
    """Does not call torch's __init__."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.inside = optimizer


class Sharded(torch.optim.SGD):
    """As torch's ZeroRedundancyOptimizer."""

    def state_dict(self) -> dict[str, Any]:
        """Not without the other ranks."""
        raise RuntimeError("Optimizer state has not been consolidated on this rank.")


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (lambda optimizer: Uninitialised(optimizer), "Uninitialised cannot be saved, its state_dict() fails: AttributeError"),
        (lambda optimizer: Sharded(optimizer.param_groups), "Sharded cannot be saved, .* not been consolidated"),
        (lambda optimizer: SimpleNamespace(optimizer=optimizer), "SimpleNamespace has no state_dict and load_state_dict"),
    ],
)  # fmt: skip
def test_an_optimizer_that_cannot_be_saved_is_refused(broken: Any, words: str) -> None:
    """One sentence, when it is registered: not a traceback of the first checkpoint."""
    _, optimizer = made("bare")

    with pytest.raises(TypeError, match=rf"worker.register\(optimizer=...\): {words}".replace("()", r"\(\)")):
        registry().add({"optimizer": broken(optimizer)}, per_rank=False)


class TwoSteps(torch.optim.Optimizer):
    """As the usual SAM: torch's state_dict, which knows nothing of the optimizer inside."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.base_optimizer, self.param_groups = inner, inner.param_groups


def test_what_a_wrapper_does_not_save_is_named(accelerator: Accelerator) -> None:
    """An optimizer that its wrapper's state leaves out, and Accelerate's, where only its scheduler is registered."""
    model, optimizer = made("bare")
    assert missed([model, TwoSteps(optimizer)]) == ["optimizer Descent"]

    model, inner = made("bare")
    optimizer, scheduler = accelerator.prepare(inner, torch.optim.lr_scheduler.StepLR(inner, 1))
    objects = registry()
    objects.add({"model": model, "scheduler": scheduler}, per_rank=False)
    assert missed([*objects.shared.values()]) == ["optimizer Descent"]
    objects.add({"optimizer": optimizer}, per_rank=False)
    assert missed([*objects.shared.values()]) == []


def test_what_has_no_state_is_not_missed() -> None:
    """A disabled GradScaler has nothing to save; an enabled one is named."""
    model, optimizer = made("bare")
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    assert (scaler.state_dict(), missed([model, optimizer])) == ({}, [])
    scaler = torch.amp.GradScaler("cpu")

    assert missed([model, optimizer]) == ["gradient scaler GradScaler"]


def test_moments_keep_the_type_that_they_were_saved_in() -> None:
    """Torch casts a loaded state to the type of the weights: fp32 moments of bf16 weights would lose their last bits."""

    class Kept(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for weight in group["params"]:
                    self.state[weight]["moment"] = torch.full_like(weight, 1 / 3, dtype=torch.float32)

    def made() -> Kept:
        return Kept([torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))], lr=0.1)

    first, again = made(), made()
    first.step()
    state = first.state_dict()
    again.load_state_dict(state)
    restore_dtypes(again, state, lambda value, device: value)

    (moments,) = again.state.values()
    assert torch.equal(moments["moment"], torch.full((4,), 1 / 3))


def test_what_an_optimizer_keeps_in_lists_comes_back_as_it_was() -> None:
    """Torch casts tensors in lists and dicts, too (SOAP's matrices), takes a deque's limit away and makes a text that of a generator."""

    class Keeping(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            (weight,) = self.param_groups[0]["params"]
            third = torch.full((2,), 1 / 3)
            kept = {"all": [third, {"one": third}], "norms": deque([third, 2.0], maxlen=2), "kind": "both", "count": 1}
            self.state[weight] = kept

    def made() -> Keeping:
        return Keeping([torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))], lr=0.1)

    first, again, after = made(), made(), registry()
    first.step()
    after.loaded = {"objects": {"optimizer": to_plain(first.state_dict())}}
    after.add({"optimizer": again}, per_rank=False)

    ((saved,), (kept,)) = first.state.values(), again.state.values()
    assert (digest(to_plain(kept)), kept["norms"].maxlen, kept["kind"]) == (digest(to_plain(saved)), 2, "both")


def test_gradients_are_compared_in_few_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that learns in few of its steps for months pays for sixteen looks at them, not for one a step."""
    model, optimizer = made("bare")
    registered, looks = registry(), []
    registered.add({"model": model, "optimizer": optimizer}, per_rank=False)
    monkeypatch.setattr(registered, "_gradients", lambda: looks.append(True) or [])

    for _ in range(1000):
        registered.begin_step()
        registered.end_unstepped()

    assert len(looks) == 2 * 16
