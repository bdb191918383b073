"""``python -m launcher.node.agent RUN_DIR --node I``: one agent, by hand, for the local backend, or started again by the keeper."""

from __future__ import annotations

import argparse

from launcher.node.agent.main import AgentMain

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m launcher.node.agent")
    parser.add_argument("run_dir")
    parser.add_argument("--node", type=int, help="this node's index in the allocation; default: as SLURM says")
    parser.add_argument(
        "--again", metavar="HOSTS", help="it takes a dead agent's place; HOSTS are the allocation's nodes by index"
    )
    parser.add_argument("--ends", metavar="PID,MARK", default="", help="with --again: the process to end")
    given = parser.parse_args()
    AgentMain(given.run_dir, given.node, again=given.again, ends=given.ends)()
