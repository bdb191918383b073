"""Which task runs on which node: the agents' logs are found by task numbers, the nodes by node numbers."""

from __future__ import annotations

from pathlib import Path

import inflict
import pytest
from cluster import Cluster
from harness import submit

PLUGINS = {
    "tree": "SwitchName=s1 Nodes=node[2,4]\nSwitchName=s2 Nodes=node[1,3]\nSwitchName=s0 Switches=s[1-2]\n",
    "block": "BlockName=b1 Nodes=node[2,4]\nBlockName=b2 Nodes=node[1,3]\nBlockSizes=2\n",
}


@pytest.fixture(params=PLUGINS)
def site(cluster: Cluster, request: pytest.FixtureRequest) -> Cluster:
    """A site with a network topology whose order is not that of the node list, and with block distribution as its default."""
    if request.param == "block" and cluster.version < (23, 11):
        pytest.skip("SLURM before 23.11 has no topology/block")
    (cluster.directory / "etc" / "topology.conf").write_text(PLUGINS[request.param])
    cluster.set(TopologyPlugin=f"topology/{request.param}")
    return cluster


def test_tasks_are_numbered_as_nodes_are(site: Cluster, tmp_path: Path) -> None:
    """Since 26.05 srun numbers tasks by the topology where their distribution is block; the launcher's tasks are not affected."""
    layout = 'echo "$SLURM_PROCID $SLURM_NODEID"'
    block = site.run(["srun", "-N4", "--ntasks-per-node=1", "-m", "block", "sh", "-c", layout]).stdout.split("\n")
    pairs = [line.split() for line in block if line]
    environment, each_alone = {**site.env, "SLURM_DISTRIBUTION": "block"}, {"nodes": 4, "tasks_per_node": 1}
    run = submit(tmp_path, environment, 4, resources=each_alone, params={"epochs": 200})
    run.wait_step(1)
    found = {node: agent.environ() for node, agent in inflict.agents(run).items()}
    batch_host = site.job(run.job_id)["BatchHost"]
    site.cancel_all()

    assert any(task != node for task, node in pairs) == (site.version >= (26, 5))
    assert {node: int(env["SLURM_PROCID"]) for node, env in found.items()} == {n: n for n in range(4)}
    assert found[0]["SLURMD_NODENAME"] == batch_host == "node1"
