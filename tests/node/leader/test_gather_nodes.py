"""The checks before the first round, in the number of nodes: a node's order does not grow with it."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.node.leader.gather_nodes import send_checks


@pytest.mark.parametrize(("nodes", "most"), [(1, 1), (2, 2), (33, 33), (34, 34), (2000, 34)])
def test_a_node_looks_up_some_names_and_each_name_is_looked_up(nodes: int, most: int) -> None:
    """The first node's, its own and those of 32 neighbours; a name that does not resolve is still found, by each of them."""
    sent: list[Any] = []
    send_checks([SimpleNamespace(address=f"n{i}", send=sent.append) for i in range(nodes)], 4711)  # type: ignore[misc]

    assert [(order.rank, order.world_size, order.port) for order in sent] == [(i, nodes, 4711) for i in range(nodes)]
    assert all(order.names[0] == "n0" and f"n{order.rank}" in order.names for order in sent)
    assert max(len(order.names) for order in sent) == most
    looked_up = Counter(name for order in sent for name in order.names)
    assert len(looked_up) == nodes
    assert min(looked_up.values()) >= min(nodes, 33)
