"""What the ranks of a node answer to one question goes to the leader as one message."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from launcher.node.agent import answers
from launcher.node.agent.answers import Answers
from launcher.node.wire.messages import FromAgent, RankShard, RanksSaid, ShardsWritten
from launcher.run.messages import (
    FromWorker,
    WorkerEntered,
    WorkerPhase,
    WorkerSaveAck,
    WorkerSaveBegun,
    WorkerShard,
    WorkerStopped,
)


class Node:
    """Three ranks that may answer, and what the leader is told."""

    def __init__(self) -> None:
        self.awaited = {0, 1, 2}
        self.told: list[FromAgent] = []
        self.answers = Answers(5, lambda: self.awaited, self.told.append)

    @property
    def heard(self) -> list[tuple[list[int], dict[str, object]]]:
        """Ranks and message of each."""
        assert all(isinstance(each, RanksSaid) and each.round == 5 for each in self.told)
        return [(each.ranks, each.message) for each in self.told if isinstance(each, RanksSaid)]


def play(scene: Callable[[Node], Awaitable[None]]) -> Node:
    """Let a scene happen."""

    async def all_of_it() -> Node:
        node = Node()
        await scene(node)
        return node

    return asyncio.run(all_of_it())


@pytest.mark.parametrize(
    ("said", "together"),
    [
        ([WorkerEntered(step=n) for n in (7, 9, 8)], {"type": "entered", "step": 9}),
        ([WorkerSaveAck(id=3, ok=True)] * 3, {"type": "save_ack", "id": 3, "ok": True}),
        ([WorkerSaveAck(id=3, ok=ok) for ok in (True, False, True)], {"type": "save_ack", "id": 3, "ok": False}),
        ([WorkerPhase(name="save")] * 3, {"type": "phase", "name": "save"}),
        ([WorkerSaveBegun(step=9)] * 3, {"type": "save_begun", "step": 9}),
        ([WorkerStopped(step=9, saved=True)] * 3, {"type": "stopped", "step": 9, "saved": True}),
    ],
)
def test_the_last_answer_sends_all(said: list[FromWorker], together: dict[str, object]) -> None:
    """Nothing is said before the last rank has answered, and nothing is waited for then. Units: the highest; consent: of all."""

    async def scene(node: Node) -> None:
        for rank, each in enumerate(said):
            assert node.told == []
            node.answers.take(rank, each)
        assert node.heard == [([0, 1, 2], together)]

    play(scene)


def test_parts_of_one_save_go_together() -> None:
    """One message has the files of each rank, and the slowest one's times; parts of another save go apart."""

    def shard(rank: int, step: int, seconds: float) -> WorkerShard:
        files = [{"name": f"rank-{rank}", "size": 1, "hash": "0"}]
        return WorkerShard(
            step=step, files=files, seconds=seconds, blocked_s=seconds / 10, hash_name="sha256", meta={"of": rank}
        )

    async def scene(node: Node) -> None:
        for rank, step, seconds in ((1, 4, 2.0), (0, 4, 3.0), (2, 4, 1.0), (0, 8, 1.0)):
            node.answers.take(rank, shard(rank, step, seconds))
        node.answers.flush(0)

    first, second = play(scene).told
    assert isinstance(first, ShardsWritten)
    assert first.shards == [RankShard(rank=n, files=shard(n, 4, 0.0).files, meta={"of": n}) for n in range(3)]
    assert (first.step, first.seconds, first.blocked_s, first.hash_name, first.last) == (4, 3.0, 0.3, "sha256", False)
    assert isinstance(second, ShardsWritten)
    assert (second.step, [each.rank for each in second.shards]) == (8, [0])


def test_a_rank_that_ends_is_waited_for_no_more() -> None:
    """The others' answers go when it has ended; one that comes later goes by itself."""

    async def scene(node: Node) -> None:
        node.answers.take(0, WorkerEntered(step=4))
        node.answers.take(2, WorkerEntered(step=4))
        node.awaited = {0, 2}
        node.answers.look()
        assert [ranks for ranks, _ in node.heard] == [[0, 2]]

    play(scene)


def test_a_rank_that_does_not_answer_holds_the_others_up_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may write its part for minutes: what the others say goes after `_WAIT_S`."""
    monkeypatch.setattr(answers, "_WAIT_S", 0.01)

    async def scene(node: Node) -> None:
        node.answers.take(1, WorkerStopped(step=4, saved=True))
        while not node.told:
            await asyncio.sleep(0.001)
        node.answers.take(0, WorkerStopped(step=4, saved=True))
        node.answers.take(2, WorkerStopped(step=4, saved=False))
        while len(node.told) < 3:
            await asyncio.sleep(0.001)

    assert [(ranks, said["saved"]) for ranks, said in play(scene).heard] == [([1], True), ([0], True), ([2], False)]


def test_the_last_rank_to_answer_waits_for_nobody() -> None:
    """The others' answers went before, after their wait; the next question is waited for by all again."""

    async def scene(node: Node) -> None:
        node.answers.take(1, WorkerSaveBegun(step=4))
        node.answers.flush(1)
        node.answers.take(0, WorkerSaveBegun(step=4))
        assert len(node.told) == 1
        node.answers.take(2, WorkerSaveBegun(step=4))
        assert len(node.told) == 2
        for step in (4, 8):
            node.answers.take(2, WorkerSaveBegun(step=step))
        assert len(node.told) == 2
        node.answers.flush(2)

    assert [ranks for ranks, _ in play(scene).heard] == [[1], [0, 2], [2], [2]]


def test_a_save_is_three_messages_however_its_ranks_run() -> None:
    """Each rank tells that it saves, that it has begun, and that it trains again; one after the other, or side by side."""
    words = [WorkerPhase(name="save"), WorkerSaveBegun(step=4), WorkerPhase(name="train")]

    async def scene(node: Node) -> None:
        for rank, said in [(r, w) for r in range(3) for w in words] + [(r, w) for w in words for r in range(3)]:
            node.answers.take(rank, said)

    assert play(scene).heard == [([0, 1, 2], said.to_wire()) for said in words] * 2


@pytest.mark.parametrize("seed", range(20))
def test_each_rank_is_heard_in_the_order_in_which_it_spoke(seed: int) -> None:
    """Random words of three ranks, and other messages between them: every rank's come in its order, none twice and none lost."""
    dice, spoken = random.Random(seed), {rank: [] for rank in range(3)}  # type: dict[int, list[object]]
    kinds = [
        WorkerPhase(name="save"),
        WorkerPhase(name="train"),
        WorkerSaveBegun(step=4),
        WorkerStopped(step=4, saved=True),
    ]

    async def scene(node: Node) -> None:
        for _ in range(200):
            rank, said = dice.randrange(3), dice.choice(kinds)
            node.answers.take(rank, said)
            spoken[rank].append(said.to_wire())
            if dice.random() < 0.1:
                node.answers.flush(dice.randrange(3))
        for rank in range(3):
            node.answers.flush(rank)

    heard = play(scene).heard
    assert {rank: [said for ranks, said in heard if rank in ranks] for rank in range(3)} == spoken


def test_a_ranks_messages_keep_their_order() -> None:
    """Another message of a rank, or an answer to the same question, sends what it has answered first."""

    async def scene(node: Node) -> None:
        node.answers.take(0, WorkerEntered(step=4))
        node.answers.flush(1)
        assert node.told == []
        node.answers.flush(0)
        node.answers.take(1, WorkerEntered(step=4))
        node.answers.take(1, WorkerEntered(step=5))

    assert [(ranks, said["step"]) for ranks, said in play(scene).heard] == [([0], 4), ([1], 4)]
