"""Optimizers inside the wrappers of other libraries: what is saved for them, and which of them make the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer


def bearer(thing: Any) -> Any:
    """Return what is saved for ``thing``: the optimizer inside a wrapper that adds nothing to its state, else ``thing``.

    Lightning's wrapper inherits ``load_state_dict`` from torch, which fills the wrapper and leaves the optimizer inside
    as it was. A wrapper with a state of its own (apex's loss scale) is saved as a whole.
    """
    for held in _attributes(thing).values():
        if isinstance(held, Optimizer) and getattr(thing, "state", None) is held.state and _adds_nothing(thing, held):
            return bearer(held)
    return thing


def _adds_nothing(wrapper: Any, held: Optimizer) -> bool:
    try:
        return set(wrapper.state_dict()) <= set(held.state_dict())
    except Exception:  # of any kind: an object that cannot be saved is refused elsewhere
        return False


def saves_its_parts(thing: Any) -> bool:
    """Whether the state of ``thing`` holds that of its attributes; torch's own optimizers save none of them."""
    return not isinstance(thing, Optimizer) or type(thing).state_dict is not Optimizer.state_dict


def parts(thing: Any, depth: int = 3) -> Iterator[Any]:
    """Yield ``thing`` and what its attributes hold: wrappers and chains save their parts (schedulers save no optimizer)."""
    yield thing
    if depth and saves_its_parts(thing) and not isinstance(thing, torch.nn.Module | torch.Tensor):
        is_scheduler = hasattr(thing, "get_last_lr")
        for name, value in _attributes(thing).items():
            if is_scheduler and name in ("optimizer", "optimizers"):
                continue
            for part in value if isinstance(value, list | tuple) else [value]:
                if hasattr(part, "state_dict"):
                    yield from parts(part, depth - 1)


def restore_dtypes(optimizer: Optimizer, state: Any, moved: Callable[[Any, torch.device], Any]) -> None:
    """Give what the optimizer keeps for each weight the types in which ``state``, just loaded, has it.

    torch casts tensors to the types of the weights, in lists and dicts, too: moments in fp32 of weights in bf16 would lose their last
    bits. It makes every iterable anew: a deque has no limit then, and a text is that of a generator. ``moved`` copies such a value, with
    its tensors on a device. An optimizer that loads in a way of its own is left alone.
    """
    if type(optimizer).load_state_dict is not Optimizer.load_state_dict:
        return
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for number, weight in zip(numbers, weights, strict=True):
        held = optimizer.state.get(weight, {})
        for key, saved in state["state"].get(number, {}).items():
            now = held.get(key)
            if isinstance(saved, torch.Tensor) and isinstance(now, torch.Tensor) and saved.dtype != now.dtype:
                held[key] = saved.to(now.device)
            elif isinstance(saved, Iterable) and not isinstance(saved, torch.Tensor) and key in held:
                held[key] = moved(saved, weight.device)


def _attributes(thing: Any) -> dict[str, Any]:
    return getattr(thing, "__dict__", {})
