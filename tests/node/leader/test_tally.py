"""What is counted of a round's ranks and nodes: always as if all were counted anew, and without going through all of them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from launcher.node.leader import tally
from launcher.node.leader.nodes import Node, Nodes
from launcher.node.leader.picture import picture_every_s
from launcher.node.leader.rounds import Round
from launcher.node.policy.first_failure import Failure
from launcher.node.policy.hangs import HangWatch
from launcher.node.wire.messages import AgentHello, Alive, RankUse

CHANGES: dict[str, list[Any]] = {
    "phase": ["init", "train", "evaluate", "script"], "ready": [True, False], "attached": [True, False],
    "finished": [None, 7], "stopped": [None, 7],
    "saved": [True, False], "handles_usr2": [True, False], "exited": [True, False], "frozen_since": [None, 3.0],
    "failure": [None, Failure(0, "n0", 1.0)],
}  # fmt: skip


def a_round(nodes: int, tasks: int = 8, *, script: bool = False) -> Round:
    """A round of so many nodes."""
    made = [Node(index, f"n{index}", host=f"n{index}") for index in range(nodes)]
    return Round(0, made, tasks_per_node=tasks, resume=None, hangs=HangWatch(60.0, 60.0), script=script)


@pytest.mark.parametrize("script", [False, True])
def test_a_tally_is_what_counting_all_ranks_gives(script: bool) -> None:
    """A thousand random changes; after each some of them are asked for, as the leader does between messages."""
    round_, dice = a_round(4, script=script), random.Random(1)
    for _ in range(1000):
        rank, name = dice.choice(round_.ranks), dice.choice(list(CHANGES))
        setattr(rank, name, dice.choice(CHANGES[name]))
        if dice.random() < 0.3:
            counted: Counter[object] = Counter(what for one in round_.ranks for what in tally._traits(one))
            assert {what: round_.tally[what] for what in counted} == dict(counted)
            assert round_.tally.phases == {one.phase for one in round_.ranks if not one.over}
            assert round_.all_ready == all(one.ready or one.phase == "script" or one.over for one in round_.ranks)
            assert len(round_.failures) == sum(one.failure is not None for one in round_.ranks)


def test_a_message_costs_the_same_with_sixteen_thousand_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat of one node, and a look at everything that a tick asks for: no rank but those of the message is counted."""
    round_, counted = a_round(2000), []
    assert round_.tally["plain"] == 0
    monkeypatch.setattr(tally, "_traits", lambda rank, real=tally._traits: counted.append(rank) or real(rank))
    for rank in round_.of_node[round_.nodes[5]]:
        rank.phase = "train"
        round_.progressed(rank, RankUse(rank=rank.rank, step=3, step_time_s=0.1), Alive(ranks=[]), now=5.0)
    for _ in range(10):
        asked = [
            round_.all_ready,
            round_.all_finished,
            round_.plain,
            round_.handles_usr2,
            round_.failures,
            round_.unsaved,
        ]
        assert not any(asked)
        assert round_.hung(6.0) is None
        assert round_.tally.phases == {"starting", "train"}

    assert set(counted) == set(round_.of_node[round_.nodes[5]])
    assert len(counted) == 8


def test_an_order_to_all_ranks_names_none_of_them() -> None:
    """So that it is one message for all nodes, encoded once; a rank that has ended makes its node's an own one."""
    sent: dict[str, list[Any]] = {}

    class Link:
        def __init__(self, host: str) -> None:
            self.host = host

        def send(self, message: Any) -> None:
            sent.setdefault(self.host, []).append(message)

    round_ = a_round(3, 2)
    for node in round_.nodes:
        node.link = Link(node.host)  # type: ignore[assignment]
    round_.ranks[2].exited = True
    from launcher.run.messages import Pause

    round_.send(Pause(), list(range(6)))
    assert sent["n0"][0] is sent["n2"][0]
    assert (sent["n0"][0].ranks, sent["n1"][0].ranks) == (None, [3])
    round_.send(Pause(), [0, 3])
    assert [one.ranks for one in (sent["n0"][1], sent["n1"][1])] == [[0], [3]]
    assert len(sent["n2"]) == 1


def test_lists_of_nodes_follow_every_change() -> None:
    """Joined, lost, excluded, leaving, awaiting its checks, asked for: each changes who is healthy and who is missing."""
    nodes, link = Nodes(["a", "b", "c"]), object()
    hello = AgentHello(node=1, host="b", pid=1, attempt=None, facts=None)

    def names() -> tuple[str, str]:
        return "".join(n.name for n in nodes.healthy), "".join(n.name or "?" for n in nodes.missing)

    assert names() == ("", "abc")
    node = nodes.join(link, hello, 0.0)  # type: ignore[arg-type]
    assert names() == ("b", "ac")
    for name in ("leaves", "unchecked"):
        setattr(node, name, True)
        assert names() == ("", "ac")
        setattr(node, name, False)
    nodes.all[0].bad = "broken"
    assert names() == ("b", "c")
    nodes.add("77")
    assert names() == ("b", "c")
    nodes.all[2].job = "78"
    assert names() == ("b", "")
    node.link = None
    assert names() == ("", "b")


def test_pictures_of_many_ranks_come_less_often() -> None:
    """Every second up to a thousand ranks; sixteen thousand write 400 KB a second, as a thousand do."""
    assert [picture_every_s(ranks) for ranks in (1, 1000, 16000)] == [1.0, 1.0, 16.0]
