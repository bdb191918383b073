"""Sums up the progress of a node's ranks between two heartbeats: ten messages a second of each rank would be too much for one leader."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from launcher.node.wire.messages import RankUse
from launcher.run.messages import WorkerProgress


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
    longest_s: float = 0.0
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
        self.longest_s = max(self.longest_s, said.step_time_s)
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
            "longest_s": self.longest_s,
        }  # fmt: skip


class ProgressWindow:
    """The progress of the ranks of one round on this node that the leader has not been told of."""

    def __init__(self, round_: int) -> None:
        self.round = round_
        self._told: dict[int, int] = {}
        """The step of each rank that the leader knows, or will know with the next heartbeat."""
        self._steps: dict[int, _Steps] = {}

    def holds(self, rank: int, said: WorkerProgress) -> bool:
        """Return whether this report can wait for the next heartbeat. The first one of a rank cannot."""
        before = self._told.get(rank)
        self._told[rank] = said.step
        if before is None:
            return False
        if (steps := self._steps.get(rank)) is None:
            steps = self._steps[rank] = _Steps(said, before)
        steps.add(said, max(1, said.step - before))
        return True

    def take(self, rank: int) -> WorkerProgress | None:
        """Return what is held of a rank, to be sent now: another message of it follows."""
        steps = self._steps.pop(rank, None)
        return None if steps is None else steps.latest

    def heartbeat(self, uses: Iterable[RankUse]) -> dict[str, Any]:
        """Return what ``alive`` carries of the ranks: what they use, and what is held of their progress."""
        held, self._steps = self._steps, {}
        if not held:
            return {"ranks": list(uses)}
        by_rank = {use.rank: use.to_wire() for use in uses}
        for rank, steps in held.items():
            by_rank[rank] = {**by_rank.get(rank, {"rank": rank}), **steps.values()}
        newest = next(iter(held.values())).latest
        return {
            "ranks": [RankUse(**values) for values in by_rank.values()], "round": self.round,
            "total_steps": newest.total_steps, "epoch": newest.epoch, "epochs": newest.epochs,
        }  # fmt: skip
