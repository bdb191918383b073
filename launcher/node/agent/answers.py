"""Gathers what the ranks of a node answer to one question of the leader's: it goes to the leader as one message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from launcher.node.wire.messages import FromAgent, RanksSaid
from launcher.run.messages import FromWorker, WorkerEntered, WorkerSaveAck, WorkerStopped

ANSWERS = (WorkerEntered, WorkerSaveAck, WorkerStopped)
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
        """By question, then by rank."""

    def take(self, rank: int, said: FromWorker) -> None:
        """Take in an answer; with the last one the leader is told. An earlier one of that rank goes first."""
        self.flush(rank)
        question = _question(said)
        given = self._given.setdefault(question, {})
        given[rank] = said
        if len(given) == 1:
            asyncio.get_running_loop().call_later(_WAIT_S, self._send, question, given)
        self.look()

    def look(self) -> None:
        """Tell what is complete: a rank may have ended that had not answered."""
        awaited = set(self._awaited()) if self._given else set()
        for question, given in list(self._given.items()):
            if awaited <= given.keys():
                self._send(question, given)

    def flush(self, rank: int) -> None:
        """Tell what this rank has answered: another message of it follows."""
        for question, given in list(self._given.items()):
            if rank in given:
                self._send(question, given)

    def _send(self, question: tuple[object, ...], given: dict[int, FromWorker]) -> None:
        if self._given.get(question) is given:
            del self._given[question]
            self._tell(RanksSaid(round=self._round, ranks=sorted(given), message=_together(given).to_wire()))


def _question(said: FromWorker) -> tuple[object, ...]:
    """Return what tells answers to one question from others."""
    match said:
        case WorkerSaveAck():
            return said.type, said.id
        case WorkerStopped():
            return said.type, said.step, said.saved
        case _:
            return (said.type,)


def _together(given: dict[int, FromWorker]) -> FromWorker:
    """Return the one answer that says what all of these say: the highest unit entered; yes only where all say yes."""
    answers = list(given.values())
    if entered := [said.step for said in answers if isinstance(said, WorkerEntered)]:
        return WorkerEntered(step=max(entered))
    refused = [said for said in answers if isinstance(said, WorkerSaveAck) and not said.ok]
    return refused[0] if refused else answers[0]
