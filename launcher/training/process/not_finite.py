"""Finds metrics that are not finite, on every rank and at the very step, and never waits for a device.

After the gradients' all-reduce every rank has them: only the local value, at each step, tells which rank had them first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from numbers import Real
from typing import Any, NamedTuple

import torch

from launcher.run.messages import WorkerNotFinite

_KEPT = 1024
"""Values kept on a device between two looks, which are a tenth of a second apart."""
_MOST_TOLD = 20
"""Changes told in a round: a metric that comes and goes at each step must not fill the history."""


class Arrived(NamedTuple):
    """A logged value that has come from its device."""

    number: int
    """How many values of the metric were put up to this one."""
    step: int
    epoch: int
    value: float


class NotFiniteWatch:
    """Tells when a metric becomes NaN or infinite, and when it is finite again."""

    def __init__(self, send: Callable[[WorkerNotFinite], None]) -> None:
        self._send = send
        self._rings: dict[str, _Ring] = {}
        self.well: set[str] = set()
        """Metrics whose latest value was finite."""
        self._bad: dict[str, WorkerNotFinite] = {}
        self._told = 0

    def see(self, step: int, name: str, value: Any, *, epoch: int | None = None) -> Any:
        """Take in a value of ``step``: a number, or a tensor of one element. Return what holds it. ``epoch``: it is logged.

        A tensor is copied on its device, without its graph: user code may free it and write to it. The copy lasts until a
        thousand newer values of this metric. One of a CPU is a number already.
        """
        if isinstance(value, torch.Tensor):
            if value.numel() != 1:
                return value.detach()
            if on_device(value):
                return self._ring(name, value.device).put(step, value, epoch)
            value = value.item()
        if isinstance(value, float | int | Real):  # the last takes longer: numpy's scalars, too
            self._value(name, step, float(value))
        return value

    def count(self, name: str) -> int:
        """Return how many tensors of a metric were taken in."""
        return self._rings[name].count if name in self._rings else 0

    def arrived(self, name: str) -> Arrived | None:
        """Return the newest logged value of a metric that has come from its device."""
        return self._rings[name].newest if name in self._rings else None

    def look(self, *, wait: bool = False) -> None:
        """Examine what has arrived from devices; with ``wait`` everything up to now."""
        for name, ring in self._rings.items():
            for step, value in ring.take(wait=wait):
                self._value(name, step, value)

    def _ring(self, name: str, device: torch.device) -> _Ring:
        ring = self._rings.get(name)
        if ring is None or ring.device != device:
            ring = self._rings[name] = _Ring(device)
        return ring

    def _value(self, name: str, step: int, value: float) -> None:
        if math.isfinite(value):
            self.well.add(name)
            if (bad := self._bad.pop(name, None)) is not None:
                self._tell(WorkerNotFinite(step=bad.step, metric=name, value=bad.value, until=step))
        # What begins as an infinity may be meant so ("best so far"); a loss never is.
        elif name in self.well or (name not in self._bad and "loss" in name.lower()):
            self.well.discard(name)
            self._bad[name] = WorkerNotFinite(step=step, metric=name, value=str(float(value)))
            self._tell(self._bad[name])

    def _tell(self, message: WorkerNotFinite) -> None:
        self._told += 1
        if self._told <= _MOST_TOLD:
            self._send(message)


def on_device(value: Any) -> bool:
    """Return whether this is a tensor for whose number the host would have to wait."""
    return isinstance(value, torch.Tensor) and not value.is_cpu


class _Ring:
    """The latest values of one metric, copied on the device at each step and from it in the background."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        on_gpu = device.type == "cuda"
        with torch.inference_mode(False):
            self._values = torch.zeros(_KEPT, dtype=torch.float64, device=device)
            self._slots = self._values.unbind()  # an index at each step would cost three times the copy
            self._host = torch.zeros(_KEPT, dtype=torch.float64, pin_memory=True) if on_gpu else self._values
        self._arrived = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        self._steps: list[tuple[int, int | None]] = [(0, None)] * _KEPT
        """Of each value its step and, where it is logged, its epoch."""
        self._copied_steps = self._steps
        self._put = self._copied = self._taken = 0
        self.newest: Arrived | None = None

    @property
    def count(self) -> int:
        """How many values were put."""
        return self._put

    def put(self, step: int, value: torch.Tensor, epoch: int | None = None) -> torch.Tensor:
        """Copy a value, in the device's own order; return the copy."""
        at, value = self._put % _KEPT, value.detach()
        self._steps[at] = step, epoch
        self._put += 1
        return self._slots[at].copy_(value if value.dim() == 0 else value.reshape(()), non_blocking=True)

    def take(self, *, wait: bool) -> Iterator[tuple[int, float]]:
        """Yield the steps and values that have arrived; copying the newer ones begins."""
        while wait and self._taken < self._put:
            self._copy()
            if self._arrived is not None:
                self._arrived.synchronize()
            yield from self._look()
        if self._arrived is None:
            self._copy()
        yield from self._look()
        self._copy()

    def _copy(self) -> None:
        """Begin to copy what has been put, unless the copy before it has not been read."""
        if self._copied != self._taken or self._put == self._copied:
            return
        if self._arrived is not None:
            self._host.copy_(self._values, non_blocking=True)
            self._arrived.record()
        self._copied, self._copied_steps = self._put, self._steps.copy()

    def _look(self) -> Iterator[tuple[int, float]]:
        arrived = self._arrived is None or self._arrived.query()  # type: ignore[no-untyped-call]
        if self._copied == self._taken or not arrived:
            return
        first, self._taken = max(self._taken, self._copied - _KEPT), self._copied
        steps, values = self._copied_steps, self._host.tolist()
        for i in range(self._copied - 1, first - 1, -1):
            step, epoch = steps[i % _KEPT]
            if epoch is not None:
                self.newest = Arrived(i + 1, step, epoch, values[i % _KEPT])
                break
        yield from ((steps[i % _KEPT][0], values[i % _KEPT]) for i in range(first, self._copied))
