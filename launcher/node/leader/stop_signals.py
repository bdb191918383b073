"""Finds out why the agents received a signal, and has the run stop where that is meant."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Coroutine
from typing import Any

from launcher.node.allocation.allocation import SignalMeaning, window_s
from launcher.node.allocation.host_end import is_shutting_down
from launcher.node.leader import replacements
from launcher.node.leader.board import Board
from launcher.node.leader.inbox import Inbox
from launcher.node.leader.nodes import Node
from launcher.node.policy.decisions import Evidence, Kind
from launcher.run.asking import PATIENCE_S, exists
from launcher.run.causes import MEANINGS
from launcher.run.state import write_request

_ASK_AGAIN_S = 1.0
"""Every agent hears every signal: SLURM is asked once for all of them, and again when one hears it again."""
_SPREAD_S = 2.0
"""scancel's TERM has reached every agent once none has heard it for so long."""
_TOGETHER_S = 60.0
"""TERMs that agents hear within so long count as one."""
_ASK_WHY_S = 60.0
"""Once the work is saved, SLURM is asked for so long why the signal came. If it wanted the job's end, it kills the job by then."""
_REQUEST_S, _REQUEST_POLL_S = 60.0, 1.0
"""A USR2 that nothing explains may announce a user's request: NFS clients may see that file this late."""


class Signals:
    """The signals of one attempt. Every agent hears every signal: SLURM is asked once for all of them."""

    def __init__(self, board: Board, inbox: Inbox) -> None:
        self.board = board
        self._inbox = inbox
        self._asked: dict[str, tuple[float, set[int]]] = {}
        """By name of a signal: when SLURM was last asked about it, and the nodes whose agents have heard it since."""
        self._term_at: dict[int, float] = {}
        """By index of a node of the run's job: when its agent heard TERM last."""
        self._unexplained: set[str] = set()
        """Names of signals that SLURM has not explained yet."""
        self._idle_signals: dict[str, float] = {}
        """By name of a signal that means nothing: when it was noted last."""
        self._tasks: set[asyncio.Task[Any]] = set()

    def heard(self, name: str, node: Node) -> None:
        """Note that an agent received a signal; a thread asks SLURM what it means."""
        board = self.board
        if board.phase == "ended" or name == "CONT":
            return
        if name in ("USR1", "HUP"):
            self._note_idle_signal(name, node)
            return
        now, sent, name = board.now(), name, "TERM" if name == "INT" else name
        # SLURM sends it to every process of the step: scripts, or what they started, have heard it, whatever they exit with.
        round_ = board.round if board.allocation.requeues else None
        heard = round_ is not None and round_.script and (node.job is None or node in round_.nodes)
        if round_ is not None and heard and (name == "TERM" or round_.handles_usr2):
            board.term_sent = board.term_sent or name == "TERM"
            self._inbox.pardon(round_, _ASK_AGAIN_S + 1)
        if node.job is not None:  # of a job of its own: the run's goes on
            if not node.leaves:
                node.leaves = True
                self._start(self._ask_of(node, name, sent))
            return
        if name == "TERM":
            self._term_at[node.index] = now
        asked, told = self._asked.get(name, (-_ASK_AGAIN_S, set()))
        if now - asked < _ASK_AGAIN_S and node.index not in told:
            told.add(node.index)
            return
        board.usr2_sent = board.usr2_sent or (name == "USR2" and heard)  # until the answer says that it meant nothing
        self._asked[name] = now, {node.index}
        self._start(self._ask(name, node.host, sent))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, name: str, host: str, sent: str) -> None:
        board = self.board
        try:
            meaning = await board.blocking(lambda: board.allocation.meaning(name))
        except Exception as error:  # whatever is wrong, a signal must not go unheard
            traceback.print_exc()
            board.history.warn(f"SLURM could not be asked why {sent} came: {error}")
            meaning = SignalMeaning("unknown")
        if meaning.kind == Kind.UNKNOWN_SIGNAL.value:
            self._unexplained.add(name)
        if meaning.kind == Kind.TERMINATED.value and (some := await self._sent_to_some()):
            self._take_away(some, sent)
            return
        left = None if meaning.left_s is None else round(meaning.left_s, 1)
        board.history.event("signal", host=host, name=sent, meaning=meaning.kind, left_s=left)
        if meaning.kind == Kind.TERMINATED.value:
            with contextlib.suppress(OSError):  # for whoever takes this leader's place, should it die meanwhile
                await board.blocking(lambda: write_request(board.paths, signal=sent))
        if meaning.kind == Kind.FALSE_ALARM.value:
            await self._await_request()
            self._inbox.usr2_meant_nothing()
        else:
            await self._obey(meaning, sent)

    async def _sent_to_some(self) -> list[Node]:
        """Return the nodes that were sent TERM where others were not; none where all were: scancel sends it to every agent.

        A host that is shut down, for a reboot or by a cloud that takes it back, sends it to all its own processes, and SLURM knows nothing
        of that yet. Of this host, which may be the only one, systemd tells. An agent that says nothing may not have heard it yet.
        An agent that was started again has a step of its own: a cancelled step sends it nothing.
        """
        board, came = self.board, self._term_at
        while (left_s := max(came.values(), default=0.0) + _SPREAD_S - board.now()) > 0:
            await asyncio.sleep(left_s)
        last = max(came.values(), default=0.0)
        told = {index for index, t in came.items() if last - t <= _TOGETHER_S}
        spared = any(n.here and n.job is None and n.index not in told and n.heard > last for n in board.nodes.all)
        ends = spared or await board.blocking(is_shutting_down)
        if not ends or await board.blocking(board.allocation.step_cancelled):
            return []
        return [board.nodes.all[index] for index in sorted(told)]

    def _take_away(self, nodes: list[Node], sent: str) -> str:
        """Do without these nodes, at an agreed step where they train; return what has happened."""
        board = self.board
        text = f"{sent} was sent on {', '.join(n.host for n in nodes)} alone, as when a host is shut down"
        for node in [n for n in nodes if not n.leaves and board.phase != "ended"]:
            board.history.event("signal", host=node.host, name=sent, meaning="host_leaves")
            board.exclude(node, f"it was sent {sent}, as when a host is shut down")
            node.leaves = True
            if node.here and not board.spec.hold:  # a rerun's own leader has heard of it, too
                replacements.note_leaving(board, node, text, None)
        return text

    async def _ask_of(self, node: Node, name: str, sent: str) -> None:
        board = self.board
        left_s = await board.blocking(lambda: board.allocation.time_left_s(str(node.job), name))
        if left_s is None and name == "USR2":
            left_s = float(board.spec.restart.signal_lead_s)
        left = None if left_s is None else round(left_s, 1)
        board.history.event("signal", host=node.host, name=sent, meaning=Kind.NODE_LEAVES.value, left_s=left)
        text = f"{node.host}, which job {node.job} holds, is taken away"
        replacements.note_leaving(board, node, text, left_s)

    async def learn(self) -> None:
        """Learn of what was asked of the leader that died: SLURM announces a time limit once."""
        meaning = await self.board.blocking(lambda: self.board.allocation.meaning("USR2"))
        if meaning.kind not in (Kind.FALSE_ALARM.value, Kind.UNKNOWN_SIGNAL.value):
            self._start(self._obey(meaning, "USR2"))
            await asyncio.sleep(0)  # what needs no wait is obeyed now

    async def _obey(self, meaning: SignalMeaning, sent: str) -> None:
        board = self.board
        text = MEANINGS[meaning.kind].clause.format(name=sent)
        left_s = meaning.left_s
        if meaning.kind == Kind.TIME_LIMIT.value and left_s is not None:
            # SLURM sends --signal up to 60 s early: training keeps that time.
            lead_s = float(self.board.spec.restart.signal_lead_s)
            # A script with its own handler for USR2 may have stopped already.
            end = board.now() + left_s - self.board.spec.site.kill_wait_s - lead_s
            while board.now() < end and not (board.round and board.round.tally["stopped"]):
                await asyncio.sleep(min(1.0, end - board.now()))
            left_s = min(left_s, lead_s)
        if board.phase != "ended":
            board.stop_wanted(Kind(meaning.kind), text, window_s(meaning.kind, self.board.spec, left_s))

    def _note_idle_signal(self, name: str, node: Node) -> None:
        """Note a signal that means nothing to the launcher: every agent of the step reports it, one line says so."""
        now = self.board.now()
        if now - self._idle_signals.get(name, -_ASK_AGAIN_S) >= _ASK_AGAIN_S:
            self._idle_signals[name] = now
            self.board.history.event("signal", host=node.host, name=name, meaning="nothing")

    async def _await_request(self) -> None:
        """Look for a user's request until every node would see it: nothing else explains the USR2. Training continues meanwhile."""
        board = self.board
        end = board.now() + _REQUEST_S
        most = end + PATIENCE_S
        while board.now() < end and board.phase != "ended" and board.interrupt is None:
            await asyncio.sleep(_REQUEST_POLL_S)
            try:
                found = await board.blocking(lambda: exists(self.board.paths.request, self.board.paths.root))
            except OSError:
                end = min(board.now() + _REQUEST_S, most)
                continue
            if found:
                board.stop_wanted(Kind.USER_STOP, MEANINGS["user"].clause, None)

    async def ask_why_again(self, evidence: Evidence) -> Evidence:
        """Ask SLURM again why a signal came: the stop has taken a while, and SLURM may answer by now."""
        board = self.board
        name = "TERM" if "TERM" in self._unexplained else "USR2"
        end = board.now() + _ASK_WHY_S
        while (meaning := await board.blocking(lambda: board.allocation.meaning(name))).kind == "unknown":
            if board.now() >= end or board.fenced:
                return evidence
            await asyncio.sleep(2.0)
        self._unexplained.clear()
        if board.interrupt and board.interrupt.evidence.kind is not evidence.kind:  # another signal came meanwhile
            return board.interrupt.evidence
        if meaning.kind == Kind.TERMINATED.value and (some := await self._sent_to_some()):
            text, board.interrupt = self._take_away(some, name), None
            return Evidence(Kind.NODE_LEAVES, text)
        board.cancelled = board.cancelled or meaning.kind == "cancelled"
        board.history.event("signal", host=board.host, name=name, meaning=meaning.kind)
        if meaning.kind == Kind.FALSE_ALARM.value:
            board.interrupt = None
        return Evidence(Kind(meaning.kind), MEANINGS[meaning.kind].clause.format(name=name))
