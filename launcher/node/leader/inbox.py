"""Takes in the messages of agents and workers: what each changes on the board. It decides nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from launcher.node.leader.board import Board
from launcher.node.leader.gather_nodes import CHECKS_ROUND
from launcher.node.leader.nodes import Node
from launcher.node.leader.rounds import Rank, Round
from launcher.node.policy.first_failure import Failure, cause_of, is_victim
from launcher.node.wire import messages as wire
from launcher.run import clock, messages
from launcher.run.message_lines import MessageReader

_MOST_LOSSES = 2
"""A node whose connection broke so often is not used again in this attempt."""


class Inbox:
    """Dispatches messages by their class; one that names an older round is dropped."""

    def __init__(self, board: Board, signal: Callable[[str, Node], None]) -> None:
        self.board = board
        self._signal = signal
        self._losses: dict[int, int] = {}
        self._from_agents = MessageReader(wire.FromAgent, _note)
        self._from_workers = MessageReader(messages.FromWorker, _note)

    # --- connections ---

    def received(self, link: wire.Link, values: dict[str, Any]) -> None:
        """Take one message of an agent."""
        node = self.board.nodes.of(link)
        if node is not None:
            node.heard = self.board.now()
        message = self._from_agents.read(values)
        if isinstance(message, wire.AgentHello):
            self._hello(link, message)
        elif node is not None and message is not None:
            self._hear(node, message)
        self.board.wake()

    def closed(self, link: wire.Link, why: str) -> None:
        """Take note that a connection has ended."""
        node = self.board.nodes.of(link)
        if node is not None:
            self.lose(node, why)
        self.board.wake()

    def lose(self, node: Node, why: str) -> None:
        """Count a node as lost: it sent nothing for too long, or its connection closed."""
        board = self.board
        board.nodes.drop(node)
        if board.phase == "ended":
            return
        node.lost_at, node.lost_why = board.now(), why
        self._losses[node.index] = self._losses.get(node.index, 0) + 1
        if self._losses[node.index] >= _MOST_LOSSES:
            node.bad = "its connection broke repeatedly"
        board.history.event("node_lost", host=node.host, why=why)
        if board.round is not None and node in board.round.nodes:
            board.round.lost.append((node, why))

    def _hello(self, link: wire.Link, hello: wire.AgentHello) -> None:
        board = self.board
        other = hello.attempt is not None and hello.attempt != board.attempt
        if board.phase == "ended" or other or not 0 <= hello.node < len(board.nodes.all):
            link.send(wire.Shutdown())
            link.close()
            return
        if (old := board.nodes.all[hello.node]).here:
            self.lose(old, "closed")
        node = board.nodes.join(link, hello, board.now())
        node.send(
            wire.Welcome(attempt=board.attempt, t=clock.now(), heartbeat_s=wire.HEARTBEAT_S, silence_s=wire.SILENCE_S)
        )
        facts = node.facts.to_wire() if node.facts is not None else {}
        board.history.event("node_joined", node=node.index, host=node.host, facts=facts)
        for text in (node.facts and node.facts.warnings) or ():
            board.history.event("warning", text=f"{node.host}: {text}")
        if node.facts is not None and node.facts.sees_run_dir is False:
            node.bad = "it cannot use the run directory"
            board.history.event("excluded", hosts=[node.host], why=node.bad)

    # --- agents ---

    def _hear(self, node: Node, said: wire.FromAgent) -> None:
        board = self.board
        match said:
            case wire.WorkerSaid():
                round_, rank = board.round, self._rank_of(node, said.round, said.rank)
                if round_ is not None and rank is not None:
                    message = self._from_workers.read(said.message)
                    if message is not None:
                        self._hear_worker(round_, rank, message)
            case wire.Alive():
                self._alive(node, said)
            case wire.StoreReady():
                board.ports[said.round] = said.port
            case wire.StoreFailed():
                if said.round == CHECKS_ROUND:
                    board.ports[CHECKS_ROUND] = 0  # the checks do without
                self._without_store(said.round, f"the store on {node.host} could not start: {said.error}")
            case wire.StoreEnded():
                if self._without_store(said.round, f"the store on {node.host} ended"):
                    board.history.event("store_lost", host=node.host)
            case wire.WorkerUp():
                if (rank := self._rank_of(node, said.round, said.rank)) is not None:
                    rank.pid = said.pid
            case wire.WorkerExit():
                round_, rank = board.round, self._rank_of(node, said.round, said.rank)
                if round_ is not None and rank is not None:
                    self._exited(round_, rank, said)
            case wire.Cleared():
                if (round_ := self._current(said.round)) is not None:
                    round_.cleared.add(node.index)
            case wire.StacksWritten():
                if (round_ := self._current(said.round)) is not None:
                    round_.stacks.add(node.index)
            case wire.SignalHeard():
                self._signal(said.name, node)
            case wire.ChecksDone():
                board.preflight[node.index] = said
            case wire.Leaving():
                if board.phase == "ended":
                    board.nodes.drop(node)

    def _alive(self, node: Node, said: wire.Alive) -> None:
        if (round_ := self.board.round) is None:
            return
        by_number = {r.rank: r for r in round_.ranks if r.node is node}
        for use in said.ranks:
            if (rank := by_number.get(use.rank)) is None:
                continue
            rank.use, rank.heartbeat_t = use, clock.now()
            if use.state != "T":
                rank.frozen_since = None
            elif rank.frozen_since is None:
                rank.frozen_since = self.board.now()

    def _without_store(self, number: int, problem: str) -> bool:
        """Note that the round has no store; false when it is not the current round, or that is ending."""
        round_ = self._current(number)
        if round_ is None or round_.ending:
            return False
        round_.store_problem = problem
        return True

    def _exited(self, round_: Round, rank: Rank, end: wire.WorkerExit) -> None:
        rank.exited, rank.ended_t, rank.end = True, round(clock.now(), 3), end
        if end.shutdown is not None:
            text = f"rank {rank.rank} on {rank.node.host}: the script had ended with code {end.exit_code}; then its process {end.shutdown}"
            self.board.history.event("warning", text=text, rank=rank.rank)
        if rank.finished is None and rank.stopped is None:
            self._ended(round_, rank, end)

    def _ended(self, round_: Round, rank: Rank, end: wire.WorkerExit) -> None:
        clean = end.signal is None and end.exit_code == 0
        if self._told_to_stop(round_):
            self._left(round_, rank)
        elif clean and round_.script:
            rank.finished = rank.step
            self._finished(rank)
        elif clean and round_.ending:
            rank.stopped = rank.step
        else:
            round_.failing(rank, self.board.now()).add_exit(end, ending=round_.ending)

    def _current(self, number: int) -> Round | None:
        """Return the current round, if it is the one that a message names."""
        round_ = self.board.round
        return round_ if round_ is not None and number == round_.number else None

    def _rank_of(self, node: Node, number: int, rank: int) -> Rank | None:
        round_ = self._current(number)
        if round_ is None or not 0 <= rank < round_.world_size or round_.ranks[rank].node is not node:
            return None
        return round_.ranks[rank]

    # --- workers ---

    def _hear_worker(self, round_: Round, rank: Rank, said: messages.FromWorker) -> None:
        board, now = self.board, self.board.now()
        match said:
            case messages.WorkerProgress():
                rank.ready = True
                if round_.progressed(rank, said, now) and not round_.stepped:
                    round_.stepped = True
                    board.history.event("first_step", step=rank.step, seconds=round(now - round_.began, 4))
            case messages.WorkerMetrics() | messages.WorkerEvaluated() | messages.WorkerEpoch():
                if rank.rank == 0:
                    self._numbers(said)
            case messages.WorkerHello():
                rank.pid, rank.heartbeat_t = said.pid, clock.now()
            case messages.WorkerAttached():
                rank.attached = rank.ready = True
                if board.stop is not None:  # it came after the others were asked, and TERM was kept from it
                    round_.send(board.stop.joined(rank.rank), [rank.rank])
            case messages.WorkerHandlesUsr2():
                rank.handles_usr2 = True
            case messages.WorkerOver():
                round_.set_phase(rank, "teardown", now)
            case messages.WorkerPhase():
                rank.attached = rank.attached or said.name in ("train", "between", "save", "evaluate")
                round_.set_phase(rank, said.name, now)
            case messages.WorkerReady():
                rank.ready = rank.attached = True
                round_.hangs.progressed(now)
            case messages.WorkerEntered():
                rank.entered = max(said.step, rank.entered or 0)
                if board.stop is not None and board.stop.entered(rank.rank, said.step):
                    self._agreed(round_)
            case messages.WorkerAt():
                rank.at = said.step
            case messages.WorkerSaveBegun():
                board.saver.save_begun(said.step, now)
            case messages.WorkerShard() if said.last and not self._may_finish(round_, said.step):
                board.saver.give_up(said.step)  # its own handler may have ended the script in the middle of a step
            case messages.WorkerShard():
                board.saver.shard(rank.rank, said, now)
            case messages.WorkerSaveFailed():
                board.saver.save_failed(said, now)
            case messages.WorkerSaveAck():
                board.saver.save_ack(rank.rank, said, now)
            case messages.WorkerStopped() | messages.WorkerFinished() | messages.WorkerFailure():
                self._hear_end(round_, rank, said)
            case messages.WorkerWarning():
                board.history.event("warning", text=said.text, rank=rank.rank)

    def _numbers(self, said: messages.WorkerMetrics | messages.WorkerEvaluated | messages.WorkerEpoch) -> None:
        history = self.board.history
        if isinstance(said, messages.WorkerEpoch):
            history.event("epoch", epoch=said.epoch, loss=said.loss)
            history.metrics(said.step, said.epoch, {"epoch_loss": said.loss})
            return
        self.board.metrics.update(said.metrics)
        history.metrics(said.step, said.epoch if isinstance(said, messages.WorkerMetrics) else None, said.metrics)
        if isinstance(said, messages.WorkerEvaluated):
            history.event("evaluated", step=said.step, metrics=said.metrics)

    def _hear_end(
        self, round_: Round, rank: Rank, said: messages.WorkerStopped | messages.WorkerFinished | messages.WorkerFailure
    ) -> None:
        board = self.board
        if isinstance(said, messages.WorkerFailure):
            self._failed(round_, rank, said)
            return
        rank.step = max(rank.step, said.step)
        if isinstance(said, messages.WorkerStopped):
            rank.stopped = said.step
            if board.stop is not None:
                board.stop.stopped(rank.rank)
        elif self._may_finish(round_, said.step):
            rank.finished, rank.saved = said.step, said.saved
            self._finished(rank)
        else:
            self._left(round_, rank)

    def _failed(self, round_: Round, rank: Rank, said: messages.WorkerFailure) -> None:
        if rank.over:
            return
        if not self._told_to_stop(round_):
            round_.failing(rank, self.board.now()).add_failed(said)
            return
        failure = Failure(rank.rank, rank.node.host, clock.now(), step=rank.step)
        failure.add_failed(said)
        if rank.attached and not is_victim(failure):
            text = f"{cause_of(failure).text}, while the run was being stopped"
            self.board.history.event("warning", text=text, rank=rank.rank)
        self._left(round_, rank)

    def _told_to_stop(self, round_: Round) -> bool:
        """Return whether a script's processes were sent TERM, or USR2 that it handles: one that ends now was stopped."""
        sent = self.board.term_sent or (self.board.usr2_sent and round_.handles_usr2)
        return round_.script and sent and not round_.ending

    def _may_finish(self, round_: Round, step: int) -> bool:
        """Return whether a rank that ends after ``step`` has done all its work; a handler may end a script that is being stopped."""
        stopping = self._told_to_stop(round_) or (round_.script and self.board.interrupt is not None)
        return not stopping or round_.is_done(step)

    def usr2_meant_nothing(self) -> None:
        """Take back that USR2 stops scripts, as SLURM did not send it: those that ended have ended by themselves."""
        board, round_ = self.board, self.board.round
        board.usr2_sent = False
        sound = round_ is not None and board.interrupt is None and round_.handles_usr2
        for rank in round_.ranks if round_ is not None and sound else ():
            if rank.stopped is not None:
                rank.stopped = None
                if rank.end is not None and round_ is not None:
                    self._ended(round_, rank, rank.end)

    def _left(self, round_: Round, rank: Rank) -> None:
        """Count a rank as stopped by itself, not at the agreed step."""
        rank.stopped = rank.step
        if self.board.stop is not None and self.board.stop.left(rank.rank):
            self._agreed(round_)

    def _finished(self, rank: Rank) -> None:
        step = rank.finished if rank.finished is not None else rank.step
        self.board.saver.finished(step)
        stop = self.board.stop
        if stop is not None and self.board.round is not None and stop.finished(rank.rank, step):
            self._agreed(self.board.round)

    def _agreed(self, round_: Round) -> None:
        """Tell all ranks where to stop, once all have answered the pause."""
        board, stop = self.board, self.board.stop
        if stop is None or stop.step is None:
            return
        board.history.event("agreed", step=stop.step)
        # A checkpoint is whole or none: without a rank that has left, or never attached, there is nothing to save.
        stop.save = stop.save and len(stop.ranks) == round_.world_size and not board.saver.is_committed(stop.step)
        board.saver.finished(stop.step)  # saves asked for beyond S will never be
        if stop.save:
            board.saver.label(stop.step, "stop", board.now())
        tmp = board.paths.checkpoint_tmp(board.attempt, round_.number, stop.step)
        round_.send(messages.StopAt(step=stop.step, save=stop.save, tmp=str(tmp)), sorted(stop.ranks))


def _note(text: str) -> None:
    print(f"leader: {text}", file=sys.stderr, flush=True)
