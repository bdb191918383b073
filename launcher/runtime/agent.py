"""The agent: one process per node that obeys the leader and owns its node's workers.

``python -m launcher.runtime.agent RUN_DIR --node I`` runs one by hand; `launcher.runtime.entry` is what submitit calls.
"""

from __future__ import annotations

from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec

__all__ = ["Agent"]


class Agent:
    """One node's agent; ``run`` returns the process's exit code."""

    def __init__(self, spec: RunSpec, paths: RunPaths, *, node: int, host: str, leader_host: str) -> None:
        self.spec = spec
        self.paths = paths
        self.node = node
        self.host = host
        self.leader_host = leader_host

    async def run(self) -> int:
        """Join the leader and do what it says until it says ``shutdown`` or is lost."""
        raise NotImplementedError
