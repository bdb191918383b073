"""The callable that submitit carries to each node. It is pickled by name: the submitting side imports nothing of the node side."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import Any

_REMOVAL_S = 10.0
"""A slow disk may not keep the node for longer; the next job that stages here removes what is left."""


class AgentMain:
    """Picklable callable: the agent of whatever node it is called on."""

    def __init__(self, run_dir: str, node: int | None = None, **how: Any) -> None:
        """``how``: as `launcher.node.agent.entry.run_agent` takes it."""
        self.run_dir = run_dir
        self.how = {"node": node, **how}

    def __call__(self) -> None:
        """Run this node's agent to its end and leave the process with its code.

        Without submitit's farewell: everything a user sees is in the run's own files, and a thread stuck in a slow file
        system must not keep the node. submitit's signal handlers are replaced in here.
        """
        from launcher.run.children import exit_now

        code = 1
        try:
            from launcher.node.agent.entry import run_agent

            code = run_agent(Path(self.run_dir), **self.how)
        except BaseException:
            traceback.print_exc()
        finally:
            _remove_staged()
            exit_now(code)


def _remove_staged() -> None:
    """Remove this node's copy of the environment (stage.sh)."""
    if staged := os.environ.get("LAUNCHER_STAGED"):
        import shutil
        import threading

        removing = threading.Thread(target=shutil.rmtree, args=(staged, True), daemon=True)
        removing.start()
        removing.join(_REMOVAL_S)
