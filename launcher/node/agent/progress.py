"""Sums up the progress of a node's ranks between two heartbeats: ten messages a second of each rank would be too much for one leader."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from launcher.node.wire.messages import RankUse, StartRound
from launcher.run.messages import WorkerProgress

_GOLDEN = 0.618
"""Multiples of it, modulo 1, lie evenly however many there are."""


@dataclass
class _Steps:
    """The steps of one rank since the last heartbeat."""

    latest: WorkerProgress
    before: int
    """The step that was told before them."""
    count: int = 0
    time_s: float = 0.0
    wait_s: float = 0.0
    data_s: float = 0.0
    reported_s: list[float] = field(default_factory=list)
    """The step time of each report."""
    waits_known: bool = True

    def add(self, said: WorkerProgress, done: int) -> None:
        """Take in a report of ``done`` steps."""
        self.latest = said
        if said.step_time_s is None:
            return
        self.count += done
        self.time_s += said.step_time_s * done
        self.wait_s += (said.wait_s or 0.0) * done
        self.data_s += (said.data_s or 0.0) * done
        self.reported_s.append(said.step_time_s)
        self.waits_known = self.waits_known and said.wait_s is not None

    def values(self) -> dict[str, Any]:
        """Return the fields of `RankUse`."""
        if not self.count:
            return {"step": self.latest.step}
        step_time_s, wait_s, data_s = (
            round(total / self.count, 7) for total in (self.time_s, self.wait_s, self.data_s)
        )
        return {
            "step": self.latest.step, "step_time_s": step_time_s, "wait_s": wait_s if self.waits_known else None, "data_s": data_s,
            **_usual_and_longest(self.reported_s),
        }  # fmt: skip


def _usual_and_longest(reported_s: list[float]) -> dict[str, float]:
    return {"usual_s": statistics.median(reported_s), "longest_s": max(reported_s)} if reported_s else {}


class ProgressWindow:
    """The progress of the ranks of one round on this node that the leader has not been told of."""

    def __init__(self, order: StartRound) -> None:
        self.round = order.round
        self._ranks = len(order.workers)
        self._every_s = order.detail_every_s
        self._detail_at = 0.0
        """When each rank is told of again, by this process's own clock; until then the slowest and the fastest will do."""
        self._phase = order.group_rank * _GOLDEN % 1.0
        """Nodes tell their ranks at different times: the leader is to be busy evenly."""
        self._frozen: set[int] = set()
        self._slowest = math.inf
        """As the last heartbeat with news told: the first is to tell each rank."""
        self._news = False
        """Whether a rank has progressed since then."""
        self._reported_s: list[float] = []
        """The step times that ranks have reported since then."""
        self._reported_at: float | None = None
        """When one last reported a step."""
        self._told: dict[int, int] = {}
        """The step of each rank that the leader knows, or will know with the next heartbeat."""
        self._steps: dict[int, _Steps] = {}

    def holds(self, rank: int, said: WorkerProgress, now: float) -> bool:
        """Return whether this report can wait for the next heartbeat. The first one of a rank cannot."""
        self._reported_at = now
        before = self._told.get(rank)
        self._told[rank] = said.step
        if before is None:
            return False
        if (steps := self._steps.get(rank)) is None:
            steps = self._steps[rank] = _Steps(said, before)
        steps.add(said, max(1, said.step - before))
        self._news = True
        if said.step_time_s is not None:
            self._reported_s.append(said.step_time_s)
        return True

    def take(self, rank: int) -> WorkerProgress | None:
        """Return what is held of a rank, to be sent now: another message of it follows."""
        steps = self._steps.pop(rank, None)
        return None if steps is None else steps.latest

    def heartbeat(self, uses: Iterable[RankUse], now: float) -> dict[str, Any]:
        """Return what ``alive`` carries of the ranks: how far all have come, or each one's news where that is due or one stands out."""
        uses = list(uses)
        frozen = {use.rank for use in uses if use.state == "T"}
        slowest = min(self._told.values()) if len(self._told) == self._ranks else -1
        stands_out = frozen != self._frozen or (self._news and slowest <= self._slowest)
        news, reported_s = self._news, self._reported_s
        self._frozen, self._news, self._reported_s = frozen, False, []
        if news:
            self._slowest = slowest
        common = self._common(now)
        if now >= self._detail_at or stands_out:
            self._detail_at = now + self._every_s * (self._phase if self._detail_at == 0.0 else 1.0)
            return {"ranks": self._detail(uses), **common}
        steps = (
            {"slowest": slowest, "fastest": max(self._told.values()), **_usual_and_longest(reported_s)} if news else {}
        )
        return {"ranks": [], **steps, **common}

    def _detail(self, uses: list[RankUse]) -> list[RankUse]:
        """Return what each rank uses, and what is held of its progress."""
        held, self._steps = self._steps, {}
        by_rank = {use.rank: use.to_wire() for use in uses}
        for rank, steps in held.items():
            by_rank[rank] = {**by_rank.get(rank, {"rank": rank}), **steps.values()}
        return [RankUse(**values) for values in by_rank.values()]

    def _common(self, now: float) -> dict[str, Any]:
        """Return what is the same for all ranks; nothing before the first step."""
        if self._reported_at is None:
            return {}
        values: dict[str, Any] = {"round": self.round, "quiet_s": round(now - self._reported_at, 3)}
        if self._steps:
            newest = next(iter(self._steps.values())).latest
            values |= {name: getattr(newest, name) for name in ("total_steps", "epoch", "epochs")}
        return values
