"""Metrics on their way out: tensors cost no wait, keep nothing alive, and are the step's."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from launcher.training.process import not_finite, reporter
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


def treat_as_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU's tensor is a number at once; here none is."""
    for module in (reporter, not_finite):
        monkeypatch.setattr(module, "on_device", lambda value: isinstance(value, torch.Tensor))


class Hook:
    """Held by a graph alone."""

    def __call__(self, gradient: torch.Tensor) -> None:
        """Nothing."""


def test_a_logged_tensor_is_let_go_and_converted_when_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss with its graph: no warning, no wait until a message goes out, the graph freed, and later writes unseen."""
    treat_as_of_a_device(monkeypatch)
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

    assert (channel, waits.count) == ([{"loss": 6.0, "lr": 0.5}], 0)


def test_a_tensor_of_a_cpu_is_a_number_at_once() -> None:
    """Its graph is let go, and what is written to it later is not seen."""
    channel = Sent()
    told = Reporter(channel, metrics=True)  # type: ignore[arg-type]
    loss = torch.ones(3, requires_grad=True).sum()
    for _ in range(2):
        told.log(1, 0, {"loss": loss})
        with torch.no_grad():
            loss.zero_()
    told.flush(force=True)

    assert channel == [{"loss": 3.0}, {"loss": 0.0}]


def test_an_array_of_one_number_is_that_number_at_once() -> None:
    """`loss.detach().cpu().numpy()` is no scalar of numpy's: it shows what is written to the tensor later, and was not looked at for NaN."""
    sent: list[Any] = []
    told = Reporter(SimpleNamespace(send=sent.append), metrics=True)  # type: ignore[arg-type]
    told.log(1, 0, {"warmup": 0.0})
    loss = torch.tensor(3.0)
    told.log(2, 0, {"loss": loss.numpy()})
    loss.fill_(float("nan"))
    told.flush(force=True)
    told.log(3, 0, {"loss": loss.numpy()})
    told.flush(force=True)

    assert [m.metrics for m in sent if m.type == "metrics"][1] == {"loss": 3.0}
    assert [(m.step, m.metric, m.value) for m in sent if m.type == "not_finite"] == [(3, "loss", "nan")]


class Copy:
    """What a GPU's event says of a copy under way."""

    arrived = True

    def query(self) -> bool:
        """Whether it is over."""
        return self.arrived

    def record(self) -> None:
        """It begins."""

    def synchronize(self) -> None:
        """Wait for it."""
        Waits.count += 1


def test_no_message_waits_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a metric there what has arrived goes out, with its own step; the newest is told in the end, which alone waits."""
    monkeypatch.setattr(reporter, "INTERVAL_S", 0.0)
    treat_as_of_a_device(monkeypatch)
    copy, steps, epochs = Copy(), [], []
    channel = Sent()
    channel.send = lambda message: steps.append((message.step, message.metrics)) or epochs.append(message.epoch)  # type: ignore[method-assign, func-returns-value]
    told = Reporter(channel, metrics=True)  # type: ignore[arg-type]
    ring = told._not_finite._ring("loss", torch.device("cpu"))
    ring._arrived, ring._host = copy, torch.zeros_like(ring._values)  # type: ignore[assignment]
    with Waits() as waits:
        for step in range(1, 6):
            copy.arrived = step != 3
            told.log(step, 0, {"loss": torch.tensor(float(step))})
        assert waits.count == 0
        assert [step for step, _ in steps] == sorted({step for step, _ in steps})
        assert all(metrics == {"loss": float(step)} for step, metrics in steps)
        assert 0 < steps[-1][0] < 5
        told.flush(force=True)
    assert steps[-1] == (5, {"loss": 5.0})

    del steps[:], epochs[:]
    told.log(6, 0, {"loss": torch.tensor(6.0)})
    told.log(6, 0, {"loss": torch.tensor(6.5)})  # logged again: the latest counts
    told.see_micro(7, torch.tensor(99.0))  # is not logged
    told.flush(force=True)
    told.log(7, 1, {"loss": torch.tensor(7.0)})
    told.log(8, 1, {"loss": torch.tensor(8.0)})
    told.flush(force=True)
    assert (steps[-1], steps.count((6, {"loss": 6.5}))) == ((8, {"loss": 8.0}), 1)
    assert all(epoch == (step > 6) for (step, _), epoch in zip(steps, epochs, strict=True))


@pytest.mark.parametrize(
    ("value", "what"),
    [(None, "a NoneType"), (torch.ones(2), "a Tensor of 2 elements"), ([1.0], "a list"), ("high", "a str")],
)
def test_what_is_no_number_is_named_where_it_is_logged(value: Any, what: str) -> None:
    """On every rank, in the line that logs it: the number itself is read up to a tenth of a second later, on rank 0 alone."""
    with pytest.raises(TypeError, match=rf"^log\(acc=\.\.\.\): a metric is one number, not {what}$"):
        Reporter(Sent(), metrics=False).log(1, 0, {"acc": value})
