"""Metrics that are NaN or infinite in a round: which ranks had them first, and when none has any more. Pure.

A step after one rank every rank has them, from the gradients' exchange; with long steps that is long after the first was heard.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from launcher.run.messages import WorkerNotFinite

_SETTLE_S = 2.0
"""From the first rank that is heard until all that had it at the same step have told."""


class MetricChange(NamedTuple):
    """A metric has become NaN or infinite, or is finite again (``until``)."""

    metric: str
    value: str
    step: int
    """The first such step."""
    ranks: list[int]
    """Those that had it at that step."""
    until: int | None = None
    """The first step at which no rank had it any more."""


class BadMetrics:
    """What ranks have told of their metrics, as changes of the whole round."""

    def __init__(self) -> None:
        self._bad: dict[str, dict[int, WorkerNotFinite]] = {}
        """By metric and rank: what is not finite now, or was until it is told."""
        self._since: dict[str, float] = {}
        """By metric: when the first rank was heard."""
        self._told: dict[str, MetricChange] = {}

    @property
    def since(self) -> int | None:
        """The first step of what is not finite now; None where all is."""
        return min((m.step for ranks in self._bad.values() for m in ranks.values() if m.until is None), default=None)

    def heard(self, rank: int, message: WorkerNotFinite, now: float) -> None:
        """Take in what a rank says of its own metric."""
        self._since.setdefault(message.metric, now)
        self._bad.setdefault(message.metric, {})[rank] = message

    def changes(self, now: float) -> Iterator[MetricChange]:
        """Yield what is to be told: a metric's beginning once, and its end when the last rank is well."""
        for metric in [m for m, since in self._since.items() if now - since >= _SETTLE_S]:
            ranks = self._bad[metric]
            if metric not in self._told:
                first = min(ranks.values(), key=lambda said: said.step)
                alike = sorted(rank for rank, said in ranks.items() if said.step == first.step)
                yield self._told.setdefault(metric, MetricChange(metric, first.value, first.step, alike))
            untils = [said.until for said in ranks.values() if said.until is not None]
            if len(untils) == len(ranks):
                yield self._told.pop(metric)._replace(until=max(untils))
                del self._bad[metric], self._since[metric]
