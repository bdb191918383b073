"""Gathers what the ranks of a node say alike, of a stop, a save or their phase: it goes to the leader as one message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

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

ANSWERS = (WorkerEntered, WorkerPhase, WorkerSaveAck, WorkerSaveBegun, WorkerShard, WorkerStopped)
_WAIT_S = 0.05
"""Those that have answered wait no longer for the others: one may be writing its part of a checkpoint, or stand still."""


class Answers:
    """The answers of one round's ranks that the leader has not been told of."""

    def __init__(self, round_: int, awaited: Callable[[], Iterable[int]], tell: Callable[[FromAgent], None]) -> None:
        """``awaited`` returns the ranks of this node that may still answer."""
        self._round = round_
        self._awaited = awaited
        self._tell = tell
        self._given: dict[tuple[object, ...], dict[int, FromWorker]] = {}
        """By question, in the order in which these are told; then by rank."""
        self._told: dict[tuple[object, ...], set[int]] = {}
        """Of a question that not all have answered, whose answers the leader has: the last rank to answer waits for nobody."""

    def take(self, rank: int, said: FromWorker) -> None:
        """Take in an answer; with the last one the leader is told. Earlier ones of that rank go first."""
        question, asked = _question(said), list(self._given)
        later = asked[asked.index(question) :] if question in asked else []
        if any(rank in self._given[each] for each in later):  # it would be told before what the rank said earlier
            self.flush(rank)
        given = self._given.setdefault(question, {})
        given[rank] = said
        if len(given) == 1:
            asyncio.get_running_loop().call_later(_WAIT_S, self._send, question, given)
        self.look()

    def look(self) -> None:
        """Tell what is complete: a rank may have ended that had not answered."""
        awaited = set(self._awaited()) if self._given else set()
        for question, given in list(self._given.items()):
            if awaited <= given.keys() | self._told.get(question, set()):
                self._send(question, given)

    def flush(self, rank: int) -> None:
        """Tell what this rank has answered: another message of it follows."""
        for question, given in list(self._given.items()):
            if rank in given:
                self._send(question, given)

    def _send(self, question: tuple[object, ...], given: dict[int, FromWorker]) -> None:
        if self._given.get(question) is given:
            for earlier, its in list(self._given.items()):
                if earlier == question:
                    break
                if its.keys() & given.keys():
                    self._send(earlier, its)
            del self._given[question]
            told = self._told.pop(question, set()) | given.keys()
            if not told.issuperset(self._awaited()):
                self._told[question] = told
            shards = {rank: said for rank, said in sorted(given.items()) if isinstance(said, WorkerShard)}
            if shards:
                self._tell(shards_written(self._round, shards))
            else:
                self._tell(RanksSaid(round=self._round, ranks=sorted(given), message=_together(given).to_wire()))


def _question(said: FromWorker) -> tuple[object, ...]:
    """Return what tells answers to one question from others."""
    match said:
        case WorkerPhase():
            return said.type, said.name
        case WorkerSaveAck():
            return said.type, said.id
        case WorkerStopped():
            return said.type, said.step, said.saved
        case WorkerSaveBegun():
            return said.type, said.step
        case WorkerShard():
            return said.type, said.step, said.hash_name, said.last
        case _:
            return (said.type,)


def _together(given: dict[int, FromWorker]) -> FromWorker:
    """Return the one answer that says what all of these say: the highest unit entered; yes only where all say yes."""
    answers = list(given.values())
    if entered := [said.step for said in answers if isinstance(said, WorkerEntered)]:
        return WorkerEntered(step=max(entered))
    refused = [said for said in answers if isinstance(said, WorkerSaveAck) and not said.ok]
    return refused[0] if refused else answers[0]


def shards_written(round_: int, given: dict[int, WorkerShard]) -> ShardsWritten:
    """Return what tells of these ranks' parts of one save."""
    one = next(iter(given.values()))
    return ShardsWritten(
        round=round_,
        step=one.step,
        shards=[RankShard(rank=rank, files=said.files, meta=said.meta) for rank, said in given.items()],
        seconds=max(said.seconds for said in given.values()),
        blocked_s=max(said.blocked_s for said in given.values()),
        hash_name=one.hash_name,
        last=one.last,
    )
