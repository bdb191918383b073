"""The callable that submitit carries to each node. It is pickled by name: the submitting side imports nothing of the node side."""

from __future__ import annotations

import contextlib
import os
import traceback
from pathlib import Path
from typing import Any

_REMOVAL_S = 10.0
"""A slow disk may not keep the node for longer; the next job that stages here removes what is left."""

_LOCKED = 9
"""stage.sh has opened the folder under this number."""


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

        code, staged = 1, os.environ.pop("LAUNCHER_STAGED", "")
        try:
            from launcher.node.agent.entry import run_agent

            code = run_agent(Path(self.run_dir), **self.how)
        except BaseException:
            traceback.print_exc()
        finally:
            if staged:
                _remove_staged(staged)
            exit_now(code)


def _remove_staged(folder: str) -> None:
    """Remove this node's copy of the environment, unless another agent uses it, too: both hold a lock on it (stage.sh)."""
    import fcntl
    import shutil
    import threading

    def remove() -> None:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(_LOCKED), os.stat(folder)):
                fcntl.flock(_LOCKED, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(f"{folder}/ready")  # first: one that is removed in part is none
                shutil.rmtree(folder, ignore_errors=True)

    removing = threading.Thread(target=remove, daemon=True)
    removing.start()
    removing.join(_REMOVAL_S)
