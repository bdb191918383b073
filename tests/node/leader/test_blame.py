"""Which hosts the next attempt is kept off."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from launcher.node.leader.finish import _bad_hosts
from launcher.node.leader.nodes import Node
from launcher.node.policy.decisions import Evidence, Kind


@pytest.mark.parametrize(("woke_at", "hosts"), [(None, ("n1", "n2")), (100.2, ()), (50.0, ("n1", "n2"))])
def test_agents_that_left_a_leader_which_stood_still_are_not_to_blame(woke_at, hosts):
    """It hears of their going as it goes on; nodes lost at another time stay excluded."""
    nodes = [
        Node(index, name, lost_at=lost, lost_why="closed")
        for index, (name, lost) in enumerate([("n0", None), ("n1", 100.0), ("n2", 100.1)])
    ]
    board = SimpleNamespace(woke_at=woke_at, interrupt=None, now=lambda: 101.0, nodes=SimpleNamespace(all=nodes))

    assert tuple(_bad_hosts(board, Evidence(Kind.NODE_LOST, "x", hosts=("n1",)))) == hosts
