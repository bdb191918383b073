"""Metrics on their way out: tensors cost no wait, keep nothing alive, and are the step's."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from launcher.training.process import reporter
from launcher.training.process.reporter import Reporter


class Sent(list[dict[str, Any]]):
    """A channel that keeps what is sent."""

    def send(self, message: Any) -> None:
        """Keep its numbers."""
        self.append(message.metrics)


class Waits(TorchDispatchMode):
    """Counts what makes the host wait for the device."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation passes here."""
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


class Hook:
    """Held by a graph alone."""

    def __call__(self, gradient: torch.Tensor) -> None:
        """Nothing."""


def test_a_logged_tensor_is_let_go_and_converted_when_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss with its graph: no warning, no wait until a message goes out, the graph freed, and later writes unseen."""
    monkeypatch.setattr(reporter, "INTERVAL_S", 1e9)
    channel = Sent()
    told = Reporter(channel, metrics=True)  # type: ignore[arg-type]
    hook = Hook()
    held = weakref.ref(hook)
    hidden = torch.ones(3, requires_grad=True) * 2.0
    hidden.register_hook(hook)
    loss = hidden.sum()
    with Waits() as waits:
        told.log(1, 0, {"loss": loss, "lr": 0.5})
        assert (channel, waits.count) == ([], 0)
        with torch.no_grad():
            loss.zero_()
        del hook, hidden, loss
        assert held() is None
        told.flush(force=True)

    assert (channel, waits.count) == ([{"loss": 6.0, "lr": 0.5}], 1)
