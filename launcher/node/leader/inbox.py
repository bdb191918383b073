"""Takes in the messages of agents and workers: what each changes on the board. It decides nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from launcher.node.leader import replacements, revivals
from launcher.node.leader.agreed_stop import AgreedStop
from launcher.node.leader.board import Board
from launcher.node.leader.gather_nodes import CHECKS_ROUND
from launcher.node.leader.hold import Hold
from launcher.node.leader.nodes import Node
from launcher.node.leader.rounds import Rank, Round
from launcher.node.policy.first_failure import Failure, cause_of, is_victim
from launcher.node.wire import messages as wire
from launcher.node.wire.hold_messages import JoinedRerun, LeftRerun, RerunRefused, StartRerun, StopRerun
from launcher.node.wire.keeper_messages import KeeperHello, NotRevived
from launcher.run import clock, messages
from launcher.run.message_lines import MessageReader
from launcher.run.xids import BROKEN

_MOST_LOSSES = 2
"""A node whose connection broke so often without new progress is not used again in this attempt."""


class Inbox(wire.Hub):
    """Dispatches messages by their class; one that names an older round is dropped."""

    def __init__(self, board: Board, signal: Callable[[str, Node], None], hold: Hold | None = None) -> None:
        self.board = board
        self._hold = hold
        self._signal = signal
        self._from_agents = MessageReader(wire.FromAgent, _note)
        self._from_workers = MessageReader(messages.FromWorker, _note)

    # --- connections ---

    def received(self, link: wire.Link, message: dict[str, Any]) -> None:
        """Take one message of an agent."""
        node = self.board.nodes.of(link)
        if node is not None:
            node.heard = self.board.now()
        if (keeper := self.board.keeper) is not None and link is keeper.link:
            keeper.heard = self.board.now()
        said = self._from_agents.read(message)
        if isinstance(said, wire.AgentHello):
            self._hello(link, said)
        elif isinstance(said, KeeperHello):
            revivals.keeper_joined(self.board, link, said)
        elif isinstance(said, NotRevived):
            if (node := revivals.failed(self.board, said)) is not None:
                self._signal("TERM", node)
        elif isinstance(said, StartRerun | StopRerun):
            if self._hold is not None:
                self._hold.asked(link, said)
            else:
                link.send(RerunRefused(run=said.run, why=f"{self.board.spec.id} is no hold"))
        elif node is not None and said is not None:
            self._hear(node, said)
        self.board.wake()

    def closed(self, link: wire.Link, why: str) -> None:
        """Note that a connection has ended."""
        node = self.board.nodes.of(link)
        if node is not None:
            self.lose(node, why)
        elif self._hold is not None:
            self._hold.closed(link)
        if self.board.keeper is not None and link is self.board.keeper.link:
            revivals.keeper_left(self.board)
        self.board.wake()

    def lose(self, node: Node, why: str, *, returns: bool = False) -> None:
        """Count a node as lost: it sent nothing for too long, or its connection closed. ``returns``: it is joining anew."""
        board = self.board
        board.nodes.drop(node)
        if board.phase == "ended":
            return
        node.lost_at, node.lost_why = board.now(), why
        if why != "cut_off":
            node.losses.append(board.budgets.advances)
        board.history.event("node_lost", host=node.host, why=why)
        if node.bad is None and node.losses.count(board.budgets.advances) >= _MOST_LOSSES:
            board.exclude(node, "its connection broke repeatedly")
        if board.round is not None and node in board.round.nodes:
            board.round.lost.append(node)
        if not returns:
            revivals.ask_for(board, node)

    def _hello(self, link: wire.Link, hello: wire.AgentHello) -> None:
        board = self.board
        other = hello.attempt is not None and hello.attempt != board.attempt
        known = 0 <= hello.node < len(board.nodes.all)
        if (
            board.phase == "ended"
            or other
            or not known
            or not replacements.may_join(board.nodes.all[hello.node], hello)
        ):
            link.send(wire.Shutdown())
            link.close()
            return
        if (old := board.nodes.all[hello.node]).here:
            self.lose(old, "closed", returns=True)
        node = board.nodes.join(link, hello, board.now())
        if board.round is not None:  # an agent that joins has ended all its workers before
            board.round.cleared.add(node.index)
        node.send(revivals.welcome(board))
        facts = hello.facts
        board.history.event("node_joined", node=node.index, host=node.host, facts=facts.to_wire() if facts else {})
        revivals.joined(board, node, again=hello.attempt is not None)
        for text in (facts and facts.warnings) or ():
            board.history.warn(f"{node.host}: {text}")
        if facts and facts.sees_run_dir is False:
            board.exclude(node, "it cannot use the run directory")
        if node.job is not None:
            replacements.welcome_node(board, node)
        revivals.tell_line(board)

    # --- agents ---

    def _hear(self, node: Node, said: wire.FromAgent) -> None:
        board, round_ = self.board, self.board.round
        if round_ is not None and getattr(said, "round", None) not in (None, round_.number):
            round_ = None
        match said:
            case wire.WorkerSaid() if rank := _rank_of(node, round_, said.rank):
                message = self._from_workers.read(said.message)
                if message is not None:
                    self._hear_worker(rank, message)
            case wire.RanksSaid():
                if (message := self._from_workers.read(said.message)) is not None:
                    for rank in filter(None, (_rank_of(node, round_, number) for number in said.ranks)):
                        self._hear_worker(rank, message)
            case wire.ShardsWritten() if round_:
                self._shards(node, round_, said)
            case wire.WorkerUp() if rank := _rank_of(node, round_, said.rank):
                rank.pid = said.pid
            case wire.WorkerExit() if rank := _rank_of(node, round_, said.rank):
                self._exited(rank, said)
            case wire.Alive() if round_ is not None:
                self._beat(node, round_, said)
            case wire.GpuError():
                board.history.event("gpu_error", host=node.host, gpu=said.gpu, xid=said.xid)
                if round_ is not None and said.xid in BROKEN:
                    round_.broken_gpus.add(node.host)
            case wire.Cleared() if round_:
                round_.cleared.add(node.index)
            case wire.StacksWritten() if round_:
                round_.stacks.add(node.index)
            case wire.StoreReady():
                board.ports[said.round] = said.port
            case wire.StoreFailed(round=number) if number == CHECKS_ROUND:
                board.ports[number] = 0  # the checks do without
            case wire.StoreFailed() if round_ and not round_.ending:
                round_.store_problem = f"the store on {node.host} could not start: {said.error}"
            case wire.StoreEnded() if round_ and not round_.ending:
                round_.store_problem = f"the store on {node.host} ended"
                board.history.event("store_lost", host=node.host)
            case wire.SignalHeard():
                self._signal(said.name, node)
            case wire.ChecksDone():
                node.checks = said
                if node.job is not None:
                    replacements.checked(board, node, said)
            case JoinedRerun() | LeftRerun() if self._hold is not None:
                self._hold.heard(node, said)
            case wire.Leaving() if board.phase == "ended" or node.leaves:
                board.nodes.drop(node)

    def _beat(self, node: Node, round_: Round, said: wire.Alive) -> None:
        now = self.board.now()
        at = now - (said.quiet_s or 0.0)
        for use in said.ranks:
            if rank := _rank_of(node, round_, use.rank):
                self._alive(rank, use)
                if use.step is not None:
                    self._progressed(rank, use, said, at)
        if not said.ranks:
            round_.beat(node, said, at)
        if said.quiet_s is not None and said.slowest is None and all(use.step is None for use in said.ranks):
            round_.pauses.quiet_at = now

    def _alive(self, rank: Rank, use: wire.RankUse) -> None:
        rank.use, rank.heartbeat_t = use, clock.now()
        if use.state != "T":
            rank.frozen_since = None
        elif rank.frozen_since is None:
            rank.frozen_since = self.board.now()

    def _progressed(
        self,
        rank: Rank,
        said: wire.RankUse | messages.WorkerProgress,
        common: wire.Alive | messages.WorkerProgress,
        at: float,
    ) -> None:
        """Take in a rank's progress, made ``at`` the latest: its first report comes by itself, later ones with the heartbeat."""
        round_, now = rank.round, self.board.now()
        rank.ready = True
        if round_.progressed(rank, said, common, at) and not round_.stepped:
            round_.stepped = True
            self.board.history.event("first_step", step=rank.step, seconds=round(now - round_.began, 4))

    def _shards(self, node: Node, round_: Round, said: wire.ShardsWritten) -> None:
        saver = self.board.saver
        if said.last and not self._may_finish(round_, said.step):
            saver.give_up(said.step)  # a script's own handler may have ended it in the middle of a step
            return
        for shard in said.shards:
            if (rank := _rank_of(node, round_, shard.rank)) is not None:
                rank.shard_step = said.step
                saver.shard(shard, said, self.board.now())

    def _exited(self, rank: Rank, end: wire.WorkerExit) -> None:
        rank.exited, rank.ended_t, rank.end = True, round(clock.now(), 3), end
        if end.shutdown is not None:
            text = f"rank {rank.rank} on {rank.node.host}: the script had ended with code {end.exit_code}; then its process {end.shutdown}"
            self.board.history.warn(text, rank.rank)
        if rank.finished is None and rank.stopped is None:
            self._ended(rank, end)

    def _ended(self, rank: Rank, end: wire.WorkerExit) -> None:
        round_, clean = rank.round, end.signal is None and end.exit_code == 0
        if self._told_to_stop(round_):
            self._left(rank)
        elif clean and round_.script and rank.failure is None:
            step = max(rank.step, rank.shard_step)
            self._finished(rank, step) if self._may_finish(round_, step) else self._left(rank)
        elif clean and round_.ending:
            rank.stopped = rank.step
        else:
            by_us = round_.ending
            # A report may be late, since the log's end is read first: the agent knows whether its kill came before.
            if self.board.interrupt is None and end.by_us is not None:
                by_us = end.by_us
            round_.failing(rank, self.board.now()).add_exit(end, by_us=by_us)

    # --- workers ---

    def _hear_worker(self, rank: Rank, said: messages.FromWorker) -> None:
        board, round_, now = self.board, rank.round, self.board.now()
        match said:
            case messages.WorkerProgress():
                self._progressed(rank, said, said, now)
            case messages.WorkerHello():
                rank.pid, rank.heartbeat_t = said.pid, clock.now()
            case messages.WorkerAttached():
                rank.attached = rank.ready = True
                if board.stop is not None:  # it came after the others were asked, and TERM was kept from it
                    round_.send(board.stop.joined(rank.rank), [rank.rank])
            case messages.WorkerHandlesUsr2():
                rank.handles_usr2 = True
            case messages.WorkerOver():
                self._over(rank, said.code)
            case messages.WorkerPhase():
                rank.attached = rank.attached or said.name in ("train", "between", "save", "evaluate")
                round_.set_phase(rank, said.name, now)
            case messages.WorkerReady():
                rank.ready = rank.attached = True
                round_.hangs.progressed(now)
            case messages.WorkerEntered():
                rank.entered = max(said.step, rank.entered or 0)
                if board.stop is not None and board.stop.entered(rank.rank, said.step):
                    self._agreed(board.stop, round_)
            case messages.WorkerAt():
                round_.is_at(rank, said)
            case messages.WorkerSaveBegun():
                board.saver.save_begun(said.step, now)
            case messages.WorkerSaveFailed():
                board.saver.save_failed(said, now)
            case messages.WorkerSaveAck():
                board.saver.save_ack(rank.rank, said, now)
            case messages.WorkerStopped():
                round_.reached(rank, said.step)
                rank.stopped = said.step
                if board.stop is not None:
                    board.stop.stopped(rank.rank)
            case messages.WorkerFinished():
                round_.reached(rank, said.step)
                if self._may_finish(round_, said.step):
                    rank.saved = said.saved
                    self._finished(rank, said.step)
                else:
                    self._left(rank)
            case messages.WorkerFailure():
                self._failed(rank, said)
            case messages.WorkerNotFinite():
                round_.bad_metrics.heard(rank.rank, said, now)
                board.saver.metrics_heard()
            case messages.WorkerWarning():
                board.history.warn(said.text, rank.rank)
            case _ if rank.rank == 0:
                self._numbers(said)

    def _over(self, rank: Rank, code: int) -> None:
        rank.round.set_phase(rank, "teardown", self.board.now())
        if code == 0 and not self._told_to_stop(rank.round):
            rank.leaving_t = round(clock.now(), 3)

    def _numbers(self, said: messages.FromWorker) -> None:
        """Write the metrics that rank 0 reports."""
        history, latest = self.board.history, self.board.metrics
        match said:
            case messages.WorkerEpoch():
                history.event("epoch", epoch=said.epoch, loss=said.loss)
                history.metrics(said.step, said.epoch, {"epoch_loss": said.loss})
            case messages.WorkerMetrics():
                latest.update(said.metrics)
                history.metrics(said.step, said.epoch, said.metrics)
            case messages.WorkerEvaluated():
                latest.update(said.metrics)
                history.metrics(said.step, None, said.metrics)
                history.event("evaluated", step=said.step, metrics=said.metrics)

    def _failed(self, rank: Rank, said: messages.WorkerFailure) -> None:
        if rank.over:
            return
        if not self._told_to_stop(rank.round):
            rank.round.failing(rank, self.board.now()).add_failed(said)
            return
        failure = Failure(rank.rank, rank.node.host, clock.now(), step=rank.step)
        failure.add_failed(said)
        if rank.attached and not is_victim(failure):
            text = f"{cause_of(failure).text}, while the run was being stopped"
            self.board.history.warn(text, rank.rank)
        self._left(rank)

    def _told_to_stop(self, round_: Round) -> bool:
        """Return whether a script's processes were sent TERM, or USR2 that it handles: one that ends now was stopped."""
        sent = self.board.term_sent or (self.board.usr2_sent and round_.handles_usr2)
        return round_.script and sent and not round_.ending

    def _may_finish(self, round_: Round, step: int) -> bool:
        """Return whether a rank that ends after ``step`` has done all its work; a handler may end a script that is being stopped."""
        stopping = self._told_to_stop(round_) or (round_.script and self.board.interrupt is not None)
        return not stopping or round_.is_done(step)

    def pardon(self, round_: Round, within_s: float) -> None:
        """Count ranks that have just failed as stopped: a signal reached them before an agent reported it."""
        if round_.failed_at is None or self.board.now() - round_.failed_at > within_s:
            return
        round_.failed_at = None
        for rank in round_.ranks:
            if rank.failure is not None:
                rank.failure = None
                self._left(rank)

    def usr2_meant_nothing(self) -> None:
        """Take back that USR2 stops scripts, as SLURM did not send it: those that ended have ended by themselves."""
        board, round_ = self.board, self.board.round
        board.usr2_sent = False
        if round_ is None or board.interrupt is not None or not round_.handles_usr2:
            return
        for rank in round_.ranks:
            if rank.stopped is not None:
                rank.stopped = None
                if rank.end is not None:
                    self._ended(rank, rank.end)

    def _left(self, rank: Rank) -> None:
        """Count a rank as stopped by itself, not at the agreed step."""
        rank.stopped, stop = rank.step, self.board.stop
        if stop is not None and stop.left(rank.rank):
            self._agreed(stop, rank.round)

    def _finished(self, rank: Rank, step: int) -> None:
        rank.finished, stop = step, self.board.stop
        self.board.saver.finished(step)
        if stop is not None and stop.finished(rank.rank, step):
            self._agreed(stop, rank.round)

    def _agreed(self, stop: AgreedStop, round_: Round) -> None:
        """Tell all ranks where to stop, now that all have answered the pause."""
        board, step = self.board, stop.step or 0
        board.history.event("agreed", step=step)
        # A checkpoint is whole or none: without a rank that has left, or never attached, there is nothing to save.
        stop.save = stop.save and len(stop.ranks) == round_.world_size and not board.saver.is_committed(step)
        board.saver.finished(step)  # saves asked for beyond S will never be
        if stop.save:
            board.saver.label_stop(step, board.now())
        round_.send(messages.StopAt(step=step, save=stop.save), sorted(stop.ranks))


def _rank_of(node: Node, round_: Round | None, number: int) -> Rank | None:
    """Return a rank of the round, if it runs on that node."""
    if round_ is None or not 0 <= number < round_.world_size:
        return None
    return round_.ranks[number] if round_.ranks[number].node is node else None


def _note(text: str) -> None:
    print(f"leader: {text}", file=sys.stderr, flush=True)
