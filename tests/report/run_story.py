"""Made-up runs: a directory whose files tell a given story."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from launcher.report.model.history import History, read_history
from launcher.report.model.summary import RunSummary, summarise_history
from launcher.run.paths import SPEC_VERSION, RunPaths

T0 = 1_790_000_000.0
"""When every story begins."""


def summarise(paths: RunPaths, slurm: Any, now: float) -> RunSummary:
    """The state of the run at ``paths``."""
    return summarise_history(read_history(paths), slurm, now)


class Story:
    """Writes a run's files event by event; ``at`` moves the clock on."""

    def __init__(self, root: Path, name: str = "resnet50", tail: str = "1121-0842-k7f", **spec: Any) -> None:
        self.paths = RunPaths(root / f"{name}-{tail}")
        self.paths.root.mkdir(parents=True)
        self.t = T0
        self.attempt: int | None = None
        self.round: int | None = None
        base = {
            "version": SPEC_VERSION,
            "name": name,
            "nodes": 2,
            "tasks_per_node": 2,
            "gpus_per_node": 0,
            "timeout_min": 60,
            "batch": "slurm",
        }
        restart = {"max_total_hours": 168.0, "max_restarts": 3}
        self.paths.spec.write_text(json.dumps({**base, "restart": restart, **spec}))

    def wait(self, seconds: float) -> Story:
        """Let time pass."""
        self.t += seconds
        return self

    def event(self, type_: str, **values: Any) -> Story:
        """Something happens now."""
        head: dict[str, Any] = {"t": self.t, "type": type_, "attempt": self.attempt}
        if self.round is not None:
            head["round"] = self.round
        with self.paths.events.open("a") as f:
            f.write(json.dumps({**head, **values}) + "\n")
        return self

    def submitted(self, **values: Any) -> Story:
        """The run is handed to the queue."""
        return self.event("submitted", **{"job_id": "482913", "backend": "slurm", "nodes": 2, "by": "submit", **values})

    def begins(self, **values: Any) -> Story:
        """A leader begins an attempt."""
        self.attempt = 0 if self.attempt is None else self.attempt + 1
        self.round = None
        return self.event("attempt_started", **{"job_id": "482913", "host": "node1", **values})

    def round_starts(self, ranks: int = 4, **values: Any) -> Story:
        """Workers are started, two to a host."""
        self.round = 0 if self.round is None else self.round + 1
        table = [{"rank": r, "host": f"node{1 + r // 2}", "node": r // 2, "local_rank": r % 2} for r in range(ranks)]
        return self.event("round_started", **{"world_size": ranks, "master_addr": "node1", "ranks": table, **values})

    def state(self, **values: Any) -> Story:
        """The leader's picture."""
        picture = {"t": self.t, "attempt": self.attempt, "round": self.round, "phase": "training", **values}
        self.paths.state.write_text(json.dumps(picture))
        return self

    def outcome(self, state: str, reason: str = "", **values: Any) -> Story:
        """The end."""
        self.event("ended", state=state, reason=reason, **values)
        self.paths.outcome.write_text(json.dumps({"t": self.t, "state": state, "reason": reason, **values}))
        return self

    def history(self) -> History:
        """The files, read."""
        return read_history(self.paths)


def training(tmp_path: Path, **spec: object) -> Story:
    """A run that trains on two hosts."""
    story = Story(tmp_path, **spec).submitted().wait(10).begins().wait(5).round_starts().wait(5)
    story.event("first_step", step=1, seconds=5.0)
    ranks = [
        {"rank": r, "host": f"node{1 + r // 2}", "pid": 100 + r, "step_time_s": 0.5 + 0.1 * (r == 3)} for r in range(4)
    ]
    story.wait(60).state(
        step=120, total_steps=600, rate=2.0, world_size=4, nodes=["node1", "node2"], ranks=ranks, allocation_t=T0 + 10,
        spent_s=65.0, metrics={"loss": 0.25},
    )  # fmt: skip
    return story
