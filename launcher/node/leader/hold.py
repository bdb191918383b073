"""Keeps the allocation of a hold: other runs, its reruns, train in it one after the other.

The hold's leader trains nothing. A command connects to it as an agent does, and names a run. The agents of the hold then take part
in that run (`launcher.node.agent.reruns`), which has a leader of its own beside one of them.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field

from launcher.errors import RunFailedError
from launcher.node.allocation.allocation import window_s
from launcher.node.leader.board import Board
from launcher.node.leader.nodes import Node
from launcher.node.leader.picture import picture
from launcher.node.policy.decisions import Evidence, Kind
from launcher.node.wire import messages as wire
from launcher.node.wire.hold_messages import (
    EndRerun,
    ForwardStop,
    JoinedRerun,
    JoinRerun,
    LeftRerun,
    RerunAccepted,
    RerunFinished,
    RerunRefused,
    StartRerun,
    StopRerun,
)
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome

HOLDING = "holding"
"""The phase of a hold whose nodes are there."""
_ENDS_HOLD = (Kind.PREEMPTED, Kind.PREEMPTED_NOW, Kind.TIME_LIMIT, Kind.SCRIPT_GONE, Kind.HOURS, Kind.IDLE)
"""What ends a hold without harm: it has no work of its own."""
_LEAVE_S = 15.0
"""When the leader of a rerun has ended, its agents leave by themselves within so long."""
_LAST_S = 1.5
"""A rerun that is stopped with a deadline has so long after it, to write how it ended."""


@dataclass(eq=False)
class _Rerun:
    """The rerun that trains, or is to."""

    order: StartRerun
    paths: RunPaths
    callers: list[wire.Link]
    """The commands that await its end."""
    nodes: dict[Node, wire.Link | None] = field(default_factory=dict)
    """Its nodes, by index, and the connection of each when it began: a node that connects anew is not in it."""
    joined: set[Node] = field(default_factory=set)
    ends: dict[Node, LeftRerun] = field(default_factory=dict)
    stopped: Evidence | None = None
    """The stop of the hold for which its leader has been asked to stop it."""

    @property
    def first(self) -> Node:
        """The node of its leader."""
        return next(iter(self.nodes))

    def left(self) -> list[Node]:
        """Return the nodes that take part still."""
        return [node for node, link in self.nodes.items() if node not in self.ends and node.link is link]

    def tell(self, message: wire.ToAgent) -> None:
        """Tell every command that awaits its end."""
        for caller in self.callers:
            caller.send(message)


class Hold:
    """The reruns of a hold, as its leader knows them."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._rerun: _Rerun | None = None
        self._concluding: asyncio.Future[None] | None = None
        self._asking: dict[str, asyncio.Future[None]] = {}
        """Runs that were asked for while another one is there, until they begin or are refused."""

    # --- what commands and agents say ---

    def asked(self, link: wire.Link, said: StartRerun | StopRerun) -> None:
        """Take what a command asks for."""
        rerun, board = self._rerun, self._board
        if isinstance(said, StopRerun):
            self._asked_to_stop(link, said)
        elif board.interrupted is not None or board.phase == "ended":
            link.send(RerunRefused(run=said.run, why=f"{board.spec.id} is ending"))
        elif rerun is not None:
            self._asking[said.run] = asyncio.ensure_future(self._asked_during(rerun, link, said))
        else:
            try:
                self._rerun = _Rerun(said, board.paths.beside(said.run), [link])
            except ValueError as error:
                link.send(RerunRefused(run=said.run, why=str(error)))

    async def _asked_during(self, rerun: _Rerun, link: wire.Link, said: StartRerun) -> None:
        """Take a run that is asked for while ``rerun`` is there.

        One that has written how it ended is over for its user: the next begins when its agents have left, within seconds.
        """
        board, other = self._board, rerun.order.run
        ended = await board.blocking(lambda: read_outcome(rerun.paths.outcome))
        if ended is not None:
            await board.until(lambda now: self._rerun is not rerun or said.run not in self._asking or None)
        if self._asking.pop(said.run, None) is None:
            return  # stopped meanwhile
        if self._rerun is rerun:
            link.send(RerunRefused(run=said.run, why=f"{other} still runs: launcher cancel {other} ends it"))
        else:
            self.asked(link, said)

    def _asked_to_stop(self, link: wire.Link, said: StopRerun) -> None:
        rerun, board = self._rerun, self._board
        kind = Kind.USER_STOP if said.save else Kind.CANCELLED
        text, left_s = "the user ran `launcher cancel`", window_s(kind.value, board.spec)
        if said.run == board.spec.id:
            board.stop_wanted(kind, text, left_s)
        elif self._asking.pop(said.run, None) is not None:
            link.send(RerunRefused(run=said.run, why="it was stopped before it began"))
        elif rerun is None or rerun.order.run != said.run:
            link.send(RerunRefused(run=said.run, why=f"{said.run} does not run any more"))
        else:
            rerun.callers += [link] if link not in rerun.callers else []
            self._stop(rerun, kind, text, left_s)

    def heard(self, node: Node, said: JoinedRerun | LeftRerun) -> None:
        """Take what an agent says of the rerun."""
        rerun = self._rerun
        if rerun is None or rerun.order.run != said.run or node not in rerun.nodes:
            return
        if isinstance(said, LeftRerun):
            rerun.ends[node] = said
            return
        rerun.joined.add(node)
        if node is rerun.first:
            rerun.tell(RerunAccepted(run=said.run, restarted=said.restarted))

    def closed(self, link: wire.Link) -> None:
        """Forget a command that has hung up; the rerun goes on."""
        if self._rerun is not None and link in self._rerun.callers:
            self._rerun.callers.remove(link)

    # --- the path of a hold ---

    async def keep(self) -> Evidence:
        """Have runs train here until something ends the hold; return what did."""
        board = self._board
        board.phase, board.held = HOLDING, True
        limit_min = board.spec.restart.idle_timeout_min
        await board.blocking(self._conclude_all)
        while True:
            idle_since = board.now()
            board.history.state(picture(board))

            def look(now: float, since: float = idle_since) -> Evidence | _Rerun | None:
                if (why := board.interrupted or board.at_risk) is not None:
                    return why
                if self._rerun is not None:
                    return self._rerun
                idle = 0 < limit_min * 60 < now - since
                return Evidence(Kind.DONE, f"nothing ran in it for {limit_min:g} min") if idle else None

            found: Evidence | _Rerun | None = await board.until(look)
            if isinstance(found, _Rerun):
                await self._train(found)
            elif found is not None:
                self.refuse(f"{board.spec.id} is ending")
                return found

    async def _train(self, rerun: _Rerun) -> None:
        """Have a rerun train, until nothing of it is left on any node."""
        board = self._board
        order, nodes = rerun.order, board.nodes

        def enough(now: float) -> bool | None:
            comes = any(node.asked_at is not None for node in nodes.all)  # the keeper starts its agent again
            return len(nodes.healthy) >= order.nodes or not comes or board.interrupted is not None or None

        await board.until(enough, timeout_s=board.timing.revive_s + board.start_s)
        healthy = nodes.healthy
        if self._rerun is not rerun:
            return  # stopped before it began
        if len(healthy) < order.nodes:
            lost = ", ".join(n.host for n in board.nodes.all if not n.healthy)
            has = (
                f"{len(healthy)} are left of {board.spec.id} (lost: {lost})"
                if lost
                else f"{board.spec.id} has {len(healthy)}"
            )
            self.refuse(f"it needs {order.nodes} nodes, and {has}")
            return
        rerun.nodes = {node: node.link for node in healthy[: order.most_nodes]}
        board.history.event("rerun_started", run=order.run, hosts=[node.host for node in rerun.nodes])
        hosts = [node.name for node in rerun.nodes]
        for index, node in enumerate(rerun.nodes):
            node.send(JoinRerun(run=order.run, node=index, hosts=hosts))
        await board.until(lambda now: self._is_over(rerun, now) or None)
        said, end = _what_ended(rerun), rerun.ends.get(rerun.first)
        if end is not None and not end.problem:
            last = board.interrupt.deadline + _LAST_S if board.interrupt is not None else math.inf
            leave_s = max(0.0, min(_LEAVE_S, last - board.now()))
            await board.until(lambda now: not rerun.left() or None, timeout_s=leave_s)
        for node in rerun.left():
            node.send(EndRerun(run=order.run))
        await board.until(lambda now: not rerun.left() or None, timeout_s=board.timing.clear_s)
        await self._finish(rerun, said)

    def _is_over(self, rerun: _Rerun, now: float) -> bool:
        """Return whether its leader has ended, it could not begin, or the hold cannot wait for it any longer."""
        board, stop = self._board, self._board.interrupt
        if stop is not None and rerun.stopped is not stop.evidence:
            # SLURM may have told its agents, too; one that has just begun has heard nothing.
            rerun.stopped = stop.evidence
            left_s = None if stop.deadline == math.inf else stop.deadline - now
            self._stop(rerun, stop.evidence.kind, stop.evidence.text, left_s)
        late = stop is not None and now > stop.deadline + _LAST_S
        left = rerun.left()
        # The rerun's own leader looks after the nodes that have joined it; one that never did it would await for long.
        lost = any(node not in left and node not in rerun.ends and node not in rerun.joined for node in rerun.nodes)
        ended = lost or any(end.problem for end in rerun.ends.values()) or rerun.first not in left
        return ended or late or board.fenced or board.at_risk is not None

    async def _finish(self, rerun: _Rerun, said: str) -> None:
        """Tell how it ended; ``said`` is that where its leader has not written it."""
        board, run = self._board, rerun.order.run
        await board.blocking(lambda: self._conclude(run, said))  # nothing, where its leader has written how it ended
        outcome = await board.blocking(lambda: read_outcome(rerun.paths.outcome))
        told = outcome or {"state": "failed", "reason": said, "exit_code": RunFailedError.exit_code}
        state, reason, code = str(told.get("state")), str(told.get("reason") or ""), int(told.get("exit_code") or 0)
        board.history.event("rerun_ended", run=run, state=state, reason=reason)
        rerun.tell(RerunFinished(run=run, state=state, reason=reason, exit_code=code))
        self._rerun = None

    def _conclude(self, run: str, said: str) -> None:
        from launcher.node.allocation.held_allocation import conclude_rerun

        conclude_rerun(self._board.paths, run, said)

    def _conclude_all(self) -> None:
        """Write how reruns ended whose hold had a leader before this one."""
        from launcher.node.allocation.held_allocation import conclude_reruns

        if self._board.claim.leader:
            for run in conclude_reruns(self._board.paths, said := "the leader of its hold died"):
                self._board.history.event("rerun_ended", run=run, state="failed", reason=said)

    def _stop(self, rerun: _Rerun, kind: Kind, text: str, left_s: float | None) -> None:
        if rerun.nodes:
            rerun.first.send(ForwardStop(run=rerun.order.run, cause=kind.value, text=text, left_s=left_s))
        else:
            self.refuse("it was stopped before it began")

    def refuse(self, why: str) -> None:
        """Tell the command that its rerun does not begin; it then takes away what it has made. Where it is gone, the outcome says so."""
        rerun, self._rerun = self._rerun, None
        if rerun is None:
            return
        rerun.tell(RerunRefused(run=rerun.order.run, why=why))
        if not rerun.callers:
            run = rerun.order.run
            self._concluding = asyncio.ensure_future(self._board.blocking(lambda: self._conclude(run, why)))


def _what_ended(rerun: _Rerun) -> str:
    """Return why a rerun is over, as its agents say it."""
    end, left = rerun.ends.get(rerun.first), rerun.left()
    if end is not None and end.reason:
        return end.reason
    problems = [f"on {node.host}: {one.problem}" for node, one in rerun.ends.items() if one.problem]
    lost = [f"the agent on {node.host} was lost" for node in rerun.nodes if node not in rerun.ends and node not in left]
    return next(iter([*problems, *lost]), "its hold ended before it did")


def end_of_hold(evidence: Evidence) -> Evidence:
    """Return what an interruption is for a hold: what takes its nodes away is its end, and no failure."""
    return Evidence(Kind.DONE, evidence.text) if evidence.kind in _ENDS_HOLD else evidence
