"""``python -m launcher.node.agent RUN_DIR --node I``: one agent, by hand or for the local backend.

The keeper starts agents again by it, and a job that replaces a node of another one starts its agent.
"""

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
    parser.add_argument(
        "--joins",
        metavar="LIFE",
        help="it replaces a node of the run's job, whose id and restart count are given (JOB.RESTARTS)",
    )
    parser.add_argument(
        "--hosts", metavar="HOSTS", default="", help="with --joins: the nodes of the run's job by index"
    )
    parser.add_argument(
        "--leader", metavar="I", type=int, default=0, help="with --joins: the index of the leader's node"
    )
    given = parser.parse_args()
    joins = (given.joins, given.hosts, given.leader) if given.joins else None
    AgentMain(given.run_dir, given.node, again=given.again, ends=given.ends, joins=joins)()
