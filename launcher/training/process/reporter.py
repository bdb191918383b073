"""Send progress and metrics to the leader, a few times a second however short the steps are."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from time import monotonic
from typing import Any

import torch

from launcher.run.message_lines import Channel
from launcher.run.messages import WorkerEpoch, WorkerEvaluated, WorkerMetrics, WorkerProgress
from launcher.training.ddp.loading import LOADING
from launcher.training.process.not_finite import NotFiniteWatch, on_device

INTERVAL_S = 0.1


class Reporter:
    """Sends at most ten messages of a kind per second; the latest value of every metric is never lost."""

    def __init__(self, channel: Channel, *, metrics: bool) -> None:
        self.send = channel.send
        self._metrics = metrics
        self._pending: dict[str, tuple[int, int, Any, int]] = {}
        """Of each metric the latest step, epoch and value, and how many tensors of it were taken in by then."""
        self._sent: dict[str, int] = {}
        """Of each metric of a GPU how many values were taken in up to the one that was sent."""
        self._metrics_at = 0.0
        self._progress_at = 0.0
        self._progress_step = -1
        self._loading_s = LOADING.seconds
        self._not_finite = NotFiniteWatch(self.send)

    def progress(self, step: int, last: bool, values: Callable[[], dict[str, Any]]) -> None:
        """Report that ``step`` optimizer steps are done; ``values`` is called only when a message goes out."""
        now = monotonic()
        if now - self._progress_at < INTERVAL_S and not last:
            return
        if step != self._progress_step:
            first = self._progress_step < 0
            per_step = 0.0 if first else 1.0 / (step - self._progress_step)
            step_time_s = round((now - self._progress_at) * per_step, 7) or None
            data_s = None if step_time_s is None else round((LOADING.seconds - self._loading_s) * per_step, 7)
            self.send(WorkerProgress(step=step, step_time_s=step_time_s, data_s=data_s, **values()))
            self._progress_at, self._progress_step, self._loading_s = now, step, LOADING.seconds
            self._not_finite.look()
        self.flush(force=last)

    def log(self, step: int, epoch: int, metrics: dict[str, Any]) -> None:
        """Look at metrics of ``step`` (numbers or tensors of one element); those of rank 0 are remembered until they are sent."""
        watch, pending = self._not_finite, self._pending
        for name, value in metrics.items():
            held, count = value, 0
            if value.__class__ is not float or not isfinite(value) or name not in watch.well:
                one = value if isinstance(value, float | int) else _one_number(name, value)
                held = watch.see(step, name, one, epoch=epoch)
                count = watch.count(name)
            if self._metrics:
                pending[name] = step, epoch, held, count
        if monotonic() - self._metrics_at >= INTERVAL_S:
            self.flush(force=False)

    def see_micro(self, step: int, loss: Any) -> None:
        """Look at the loss of a micro-batch that is not logged."""
        self._not_finite.see(step, "loss", loss)

    def flush(self, *, force: bool) -> None:
        """Send what is pending, unless something went out a moment ago; of a metric on a device what has come from there.

        The host waits for a device with ``force`` alone.
        """
        now = monotonic()
        if force:
            self._not_finite.look(wait=True)
        if not self._pending or (not force and now - self._metrics_at < INTERVAL_S):
            return
        if not force:
            self._not_finite.look()
        self._metrics_at = now
        pending, self._pending = self._pending, {}
        by_step: dict[tuple[int, int], dict[str, float]] = {}
        for name, (step, epoch, value, count) in pending.items():
            if not (count and on_device(value)):
                by_step.setdefault((step, epoch), {})[name] = float(value)
                continue
            come = self._not_finite.arrived(name)
            if come is not None and come.number > self._sent.get(name, 0):
                self._sent[name] = come.number
                by_step.setdefault((come.step, come.epoch), {})[name] = come.value
            if come is None or come.number < count:  # the latest is never lost
                self._pending[name] = (step, epoch, value, count)
        for (step, epoch), numbers in sorted(by_step.items()):
            self.send(WorkerMetrics(step=step, epoch=epoch, metrics=numbers))

    def result(self, message: WorkerEvaluated | WorkerEpoch) -> None:
        """Send the result of an evaluation or of an epoch, after the metrics that are pending; rank 0's alone."""
        if self._metrics:
            self.flush(force=True)
            self.send(message)


def _one_number(name: str, value: Any) -> Any:
    """Return a tensor as it is, anything else as a number: an array may be written to later.

    Raises TypeError, which names the metric, now: a tensor's number is read a moment later.
    """
    try:
        one = (value if value.numel() == 1 else None) if isinstance(value, torch.Tensor) else float(value)
    except (TypeError, ValueError):
        one = None
    if one is None:
        count = f" of {value.numel()} elements" if isinstance(value, torch.Tensor) else ""
        raise TypeError(f"log({name}=...): a metric is one number, not a {type(value).__name__}{count}")
    return one
