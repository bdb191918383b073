"""``python -m launcher.node.agent RUN_DIR --node I``: one agent, by hand or for the local backend."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.node.agent.entry import run_agent


def main(argv: Sequence[str] | None = None) -> int:
    """Run one agent from the command line; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m launcher.node.agent")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument(
        "--node", type=int, default=None, help="this node's place in the allocation; default: as SLURM says"
    )
    given = parser.parse_args(argv)
    return run_agent(given.run_dir, node=given.node)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads stuck in a slow file system must not keep the node
