"""The leader: the part of the first node's agent that decides; the others obey.

It alone writes the run's history and commits its checkpoints. It runs in one asyncio loop and never blocks it: fsync,
hashing and SLURM's commands run in threads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.runtime.protocol import Hub, Link

__all__ = ["Ending", "Leader"]


@dataclass(frozen=True)
class Ending:
    """How this attempt ended, for the process that runs the leader."""

    state: str
    """"completed", "failed", "cancelled" or "requeued" (the run goes on in another attempt)."""
    reason: str
    """One sentence."""
    exit_code: int
    """What the first node's agent exits with."""


class Leader(Hub):
    """Leads one attempt of a run.

    Use: ``ending = await Leader(spec, paths, host=..., node_names=[...]).run(serve)``, where ``serve(leader)`` listens on
    one of ``spec.control_ports``, calls the leader's `opened`, `received` and `closed`, and returns a function that
    stops listening. The leader's own node joins over the same transport as every other.
    """

    def __init__(self, spec: RunSpec, paths: RunPaths, *, host: str, node_names: list[str]) -> None:
        self.spec = spec
        self.paths = paths
        self.host = host
        self.node_names = node_names

    async def run(self, serve: Callable[[Leader], Awaitable[Callable[[], None]]]) -> Ending:
        """Lead until the attempt ends; every other agent has left when this returns.

        Raises RunDirError when the run directory cannot be written.
        """
        raise NotImplementedError

    def opened(self, link: Link) -> None:
        """See `Hub`."""

    def received(self, link: Link, message: dict[str, Any]) -> None:
        """See `Hub`."""

    def closed(self, link: Link, why: str) -> None:
        """See `Hub`."""
