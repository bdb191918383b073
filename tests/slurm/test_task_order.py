"""Which task runs on which node: the agents' logs are found by task numbers, the nodes by node numbers."""

from __future__ import annotations

from pathlib import Path

import inflict
import pytest
from cluster import Cluster
from harness import submit

TREE = "SwitchName=s1 Nodes=node[2,4]\nSwitchName=s2 Nodes=node[1,3]\nSwitchName=s0 Switches=s[1-2]\n"


@pytest.fixture
def tree(cluster: Cluster) -> Cluster:
    """A site with a network topology whose order is not that of the node list, and with block distribution as its default."""
    (cluster.directory / "etc" / "topology.conf").write_text(TREE)
    cluster.set(TopologyPlugin="topology/tree")
    return cluster


def test_tasks_are_numbered_as_nodes_are(tree: Cluster, tmp_path: Path) -> None:
    """Since 26.05 srun numbers tasks by the topology where their distribution is block; the launcher's tasks are not affected."""
    layout = 'echo "$SLURM_PROCID $SLURM_NODEID"'
    block = tree.run(["srun", "-N4", "--ntasks-per-node=1", "-m", "block", "sh", "-c", layout]).stdout.split("\n")
    pairs = [line.split() for line in block if line]
    environment, each_alone = {**tree.env, "SLURM_DISTRIBUTION": "block"}, {"nodes": 4, "tasks_per_node": 1}
    run = submit(tmp_path, environment, 4, resources=each_alone, params={"epochs": 200})
    run.wait_step(1)
    found = {node: agent.environ() for node, agent in inflict.agents(run).items()}
    batch_host = tree.job(run.job_id)["BatchHost"]
    tree.cancel_all()

    assert any(task != node for task, node in pairs) == (tree.version >= (26, 5))
    assert {node: int(env["SLURM_PROCID"]) for node, env in found.items()} == {n: n for n in range(4)}
    assert found[0]["SLURMD_NODENAME"] == batch_host == "node1"
