"""What agents and workers say, and what it changes on the board. No decision is taken here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from launcher.node.leader.board import Board
from launcher.node.leader.gather_nodes import CHECKS_ROUND
from launcher.node.leader.nodes import Node
from launcher.node.leader.rounds import Rank, Round
from launcher.node.policy.causes import Failure, cause_of, is_victim
from launcher.node.wire.messages import HEARTBEAT_S, SILENCE_S, Link
from launcher.run import clock

__all__ = ["Inbox"]

_MOST_LOSSES = 2
"""A node whose connection broke so often is not used again in this attempt."""


class Inbox:
    """Dispatches messages; what names an older round is dropped."""

    def __init__(self, board: Board, signal: Callable[[str, Node], None]) -> None:
        self.board = board
        self._signal = signal
        self._losses: dict[int, int] = {}

    # --- connections ---

    def received(self, link: Link, message: dict[str, Any]) -> None:
        """One message of an agent."""
        board = self.board
        if message.get("type") == "hello":
            self._hello(link, message)
        elif (node := board.nodes.of(link)) is not None:
            node.heard = board.now()
            handler = getattr(self, f"_on_{message.get('type')}", None)
            if handler is not None:
                handler(node, message)
        board.wake()

    def closed(self, link: Link, why: str) -> None:
        """A connection is gone."""
        node = self.board.nodes.of(link)
        if node is not None:
            self.lose(node, why)
        self.board.wake()

    def lose(self, node: Node, why: str) -> None:
        """A node is gone: silent or hung up."""
        board = self.board
        board.nodes.drop(node)
        if board.phase == "ended":
            return
        node.lost_at, node.lost_why = board.now(), why
        self._losses[node.index] = self._losses.get(node.index, 0) + 1
        if self._losses[node.index] >= _MOST_LOSSES:
            node.bad = "its connection broke again and again"
        board.history.event("node_lost", host=node.host, why=why)
        if board.round is not None and node in board.round.nodes:
            board.round.lost.append((node, why))

    def _hello(self, link: Link, message: dict[str, Any]) -> None:
        board = self.board
        attempt = message.get("attempt")
        if board.phase == "ended" or (isinstance(attempt, int) and attempt != board.attempt):
            link.send({"type": "shutdown"})
            link.close()
            return
        index = message.get("node")
        if isinstance(index, int) and 0 <= index < len(board.nodes.all) and (old := board.nodes.all[index]).here:
            self.lose(old, "closed")
        node = board.nodes.join(link, message, board.now())
        if node is None:
            link.send({"type": "shutdown"})
            link.close()
            return
        node.send("welcome", attempt=board.attempt, t=clock.now(), heartbeat_s=HEARTBEAT_S, silence_s=SILENCE_S)
        board.history.event("node_joined", node=node.index, host=node.host, facts=node.facts)
        for text in node.facts.get("warnings") or []:
            board.history.event("warning", text=f"{node.host}: {text}")
        if node.facts.get("sees_run_dir") is False:
            node.bad = "it does not see the run directory"
            board.history.event("excluded", hosts=[node.host], why=node.bad)

    # --- agents ---

    def _on_alive(self, node: Node, message: dict[str, Any]) -> None:
        round_ = self.board.round
        if round_ is None:
            return
        by_number = {r.rank: r for r in round_.ranks if r.node is node}
        now = self.board.now()
        for sample in message.get("ranks") or []:
            rank = by_number.get(sample.get("rank"))
            if rank is None:
                continue
            rank.sample, rank.heartbeat_t = sample, clock.now()
            if sample.get("state") != "T":
                rank.frozen_since = None
            elif rank.frozen_since is None:
                rank.frozen_since = now

    def _on_store_ready(self, node: Node, message: dict[str, Any]) -> None:
        number, port = message.get("round"), message.get("port")
        if isinstance(number, int) and isinstance(port, int):
            self.board.ports[number] = port

    def _on_store_failed(self, node: Node, message: dict[str, Any]) -> None:
        if message.get("round") == CHECKS_ROUND:
            self.board.ports[CHECKS_ROUND] = 0  # the checks do without
        if (round_ := self._round_of(message)) is not None and not round_.ending:
            round_.store_problem = f"the store on {node.host} could not start: {message.get('error')}"

    def _on_store_lost(self, node: Node, message: dict[str, Any]) -> None:
        if (round_ := self._round_of(message)) is not None and not round_.ending:
            self.board.history.event("store_lost", host=node.host)
            round_.store_problem = f"the store on {node.host} ended"

    def _on_worker_up(self, node: Node, message: dict[str, Any]) -> None:
        if (found := self._rank_of(node, message)) is not None:
            found[1].pid = message.get("pid")

    def _on_worker_exit(self, node: Node, message: dict[str, Any]) -> None:
        if (found := self._rank_of(node, message)) is None:
            return
        round_, rank = found
        rank.exited, rank.ended_t, rank.end = True, round(clock.now(), 3), message
        if (shutdown := message.get("shutdown")) is not None:
            text = f"rank {rank.rank} on {node.host}: the script had ended with code {message.get('exit_code')}; then its process {shutdown}"
            self.board.history.event("warning", text=text, rank=rank.rank)
        if rank.finished is None and rank.stopped is None:
            self._ended(round_, rank)

    def _ended(self, round_: Round, rank: Rank) -> None:
        clean = rank.end.get("signal") is None and rank.end.get("exit_code") == 0
        if self._told_to_stop(round_):
            self._left(round_, rank)
        elif clean and round_.script:
            rank.finished = rank.step
            self._finished(rank)
        elif clean and round_.ending:
            rank.stopped = rank.step
        else:
            round_.failing(rank, self.board.now()).add_exit(rank.end, ending=round_.ending)

    def _on_cleared(self, node: Node, message: dict[str, Any]) -> None:
        if (round_ := self._round_of(message)) is not None:
            round_.cleared.add(node.index)

    def _on_stacks(self, node: Node, message: dict[str, Any]) -> None:
        if (round_ := self._round_of(message)) is not None:
            round_.stacks.add(node.index)

    def _on_signal(self, node: Node, message: dict[str, Any]) -> None:
        self._signal(str(message.get("name")), node)

    def _on_preflight(self, node: Node, message: dict[str, Any]) -> None:
        self.board.preflight[node.index] = message

    def _on_leaving(self, node: Node, message: dict[str, Any]) -> None:
        if self.board.phase == "ended":
            self.board.nodes.drop(node)

    def _round_of(self, message: dict[str, Any]) -> Round | None:
        round_ = self.board.round
        return round_ if round_ is not None and message.get("round") == round_.number else None

    def _rank_of(self, node: Node, message: dict[str, Any]) -> tuple[Round, Rank] | None:
        round_, number = self._round_of(message), message.get("rank")
        if round_ is None or not isinstance(number, int) or not 0 <= number < round_.world_size:
            return None
        rank = round_.ranks[number]
        return (round_, rank) if rank.node is node else None

    # --- workers ---

    def _on_worker(self, node: Node, message: dict[str, Any]) -> None:
        found, inner = self._rank_of(node, message), message.get("message")
        if found is None or not isinstance(inner, dict):
            return
        handler = getattr(self, f"_worker_{inner.get('type')}", None)
        if handler is not None:
            handler(found[0], found[1], inner)

    def _worker_hello(self, round_: Round, rank: Rank, m: dict[str, Any]) -> None:
        rank.pid = m.get("pid") or rank.pid
        rank.heartbeat_t = clock.now()

    def _worker_attached(self, round_: Round, rank: Rank, m: dict[str, Any]) -> None:
        rank.attached = rank.ready = True
        if self.board.stop is not None:  # its word was under way when the others were asked, and TERM was kept from it
            round_.send(self.board.stop.joined(rank.rank), [rank.rank])

    def _worker_handles_usr2(self, round_: Round, rank: Rank, m: dict[str, Any]) -> None:
        rank.handles_usr2 = True

    def _worker_over(self, round_: Round, rank: Rank, m: dict[str, Any]) -> None:
        round_.set_phase(rank, "teardown", self.board.now())

    def _worker_phase(self, round_: Round, rank: Rank, m: dict[str, Any]) -> None:
        name = str(m.get("name"))
        rank.attached = rank.attached or name in ("train", "between", "save", "evaluate")
        round_.set_phase(rank, name, self.board.now())

    def _worker_ready(self, round_: Round, rank: Rank, m: dict[str, Any]) -> None:
        rank.ready = rank.attached = True
        round_.hangs.progressed(self.board.now())

    def _worker_progress(self, round_: Round, rank: Rank, m: dict[str, Any]) -> None:
        rank.ready = True
        further = round_.progressed(rank, m, self.board.now())
        if further and not round_.stepped:
            round_.stepped = True
            self.board.history.event("first_step", step=rank.step, seconds=round(self.board.now() - round_.began, 4))

    def _worker_metrics(self, round_: Round, rank: Rank, m: dict[str, Any]) -> None:
        if rank.rank == 0 and isinstance(m.get("metrics"), dict):
            self.board.metrics.update(m["metrics"])
            self.board.history.metrics(m.get("step"), m.get("epoch"), m["metrics"])

    def _worker_evaluated(self, round_: Round, rank: Rank, m: dict[str, Any]) -> None:
        if rank.rank == 0 and isinstance(m.get("metrics"), dict):
            self._worker_metrics(round_, rank, m)
            self.board.history.event("evaluated", step=m.get("step"), metrics=m["metrics"])

    def _worker_epoch(self, round_: Round, rank: Rank, m: dict[str, Any]) -> None:
        if rank.rank == 0:
            self.board.history.event("epoch", epoch=m.get("epoch"), loss=m.get("loss"))
            if m.get("step") is not None:
                self.board.history.metrics(m["step"], m.get("epoch"), {"epoch_loss": m.get("loss")})

    def _worker_entered(self, round_: Round, rank: Rank, m: dict[str, Any]) -> None:
        step, stop = m.get("step"), self.board.stop
        if not isinstance(step, int):
            return
        rank.entered = max(step, rank.entered or 0)
        if stop is not None and stop.entered(rank.rank, step):
            self._agreed(round_)

    def _worker_at(self, round_: Round, rank: Rank, m: dict[str, Any]) -> None:
        if isinstance(m.get("step"), int):
            rank.at = m["step"]

    def _worker_save_begun(self, round_: Round, rank: Rank, m: dict[str, Any]) -> None:
        if isinstance(m.get("step"), int):
            self.board.saver.save_begun(m["step"], self.board.now())

    def _worker_shard(self, round_: Round, rank: Rank, m: dict[str, Any]) -> None:
        step = m.get("step")
        if m.get("last") is True and isinstance(step, int) and not self._may_finish(round_, step):
            self.board.saver.give_up(step)  # a handler of its own may have ended it in the middle of a step
            return
        self.board.saver.shard(rank.rank, m, self.board.now())

    def _worker_save_failed(self, round_: Round, rank: Rank, m: dict[str, Any]) -> None:
        self.board.saver.save_failed(rank.rank, m, self.board.now())

    def _worker_save_ack(self, round_: Round, rank: Rank, m: dict[str, Any]) -> None:
        self.board.saver.save_ack(rank.rank, m, self.board.now())

    def _worker_stopped(self, round_: Round, rank: Rank, m: dict[str, Any]) -> None:
        step = m.get("step")
        rank.stopped = step if isinstance(step, int) else rank.step
        rank.step = max(rank.step, rank.stopped)
        if self.board.stop is not None:
            self.board.stop.stopped(rank.rank)

    def _worker_finished(self, round_: Round, rank: Rank, m: dict[str, Any]) -> None:
        step = m.get("step")
        done = step if isinstance(step, int) else rank.step
        rank.step = max(rank.step, done)
        if not self._may_finish(round_, done):
            self._left(round_, rank)
            return
        rank.finished, rank.saved = done, m.get("saved") is not False
        self._finished(rank)

    def _worker_failed(self, round_: Round, rank: Rank, m: dict[str, Any]) -> None:
        if rank.over:
            return
        if not self._told_to_stop(round_):
            round_.failing(rank, self.board.now()).add_failed(m)
            return
        failure = Failure(rank.rank, rank.node.host, clock.now(), step=rank.step)
        failure.add_failed(m)
        if rank.attached and not is_victim(failure):
            text = f"{cause_of(failure)['text']}, while the run was being stopped"
            self.board.history.event("warning", text=text, rank=rank.rank)
        self._left(round_, rank)

    def _worker_warning(self, round_: Round, rank: Rank, m: dict[str, Any]) -> None:
        self.board.history.event("warning", text=str(m.get("text")), rank=rank.rank)

    def _worker_digest(self, round_: Round, rank: Rank, m: dict[str, Any]) -> None:
        round_.digests[rank.rank] = m
        self.board.history.event("digest", rank=rank.rank, step=m.get("step"), parts=m.get("parts"))

    def _told_to_stop(self, round_: Round) -> bool:
        """A script's processes were sent TERM, or USR2, which it handles: whatever ends one of them now, it was stopped."""
        sent = self.board.term_sent or (self.board.usr2_sent and round_.handles_usr2)
        return round_.script and sent and not round_.ending

    def _may_finish(self, round_: Round, step: int) -> bool:
        """Whether a rank that ends after ``step`` has done all its work; a script that is being stopped may have left by a handler."""
        stopping = self._told_to_stop(round_) or (round_.script and self.board.interrupt is not None)
        return not stopping or round_.is_done(step)

    def usr2_meant_nothing(self) -> None:
        """Somebody sent it by hand: scripts that ended upon it have ended by themselves."""
        board, round_ = self.board, self.board.round
        board.usr2_sent = False
        sound = round_ is not None and board.interrupt is None and round_.handles_usr2
        for rank in round_.ranks if round_ is not None and sound else ():
            if rank.stopped is not None:
                rank.stopped = None
                if rank.exited and round_ is not None:
                    self._ended(round_, rank)

    def _left(self, round_: Round, rank: Rank) -> None:
        """A rank has stopped by itself, not at the agreed step."""
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
        """Everybody has answered a pause: tell all where to stop."""
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
        round_.send(stop.order(str(tmp)), sorted(stop.ranks))
