"""What submitit runs on each node."""

from __future__ import annotations

__all__ = ["AgentMain"]


class AgentMain:
    """Picklable callable: the agent of whatever node it is called on."""

    def __init__(self, run_dir: str) -> None:
        self.run_dir = run_dir

    def __call__(self) -> int:
        """Run this node's agent to its end; leaves the process with a non-zero code when the attempt did not end well."""
        raise NotImplementedError
