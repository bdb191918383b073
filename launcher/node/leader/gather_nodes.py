"""Waits for the nodes and checks them, before the first round."""

from __future__ import annotations

from launcher.node.leader.board import Board
from launcher.node.leader.nodes import Node
from launcher.node.leader.picture import missing, picture
from launcher.node.leader.wait import until
from launcher.node.policy.decisions import Evidence, Kind
from launcher.node.wire.messages import CheckPeer, EndRound, RunChecks, StartStore
from launcher.run.event_parts import Cause
from launcher.run.units import named_ranks

CHECKS_ROUND = -1
"""The number of the checks' store and processes: they are ended like a round's."""
_SAY_AFTER_S = (5.0, 15.0, 30.0)
_SAY_EVERY_S = 60.0


def interrupted(board: Board) -> Evidence | None:
    """Return evidence of a stop that was asked for, if one was."""
    if board.fenced:
        return Evidence(Kind.FENCED, "this attempt is over")
    if board.interrupt is not None:
        return Evidence(board.interrupt.kind, board.interrupt.text)
    return None


async def await_nodes(board: Board) -> Evidence | None:
    """Wait until enough nodes are here; evidence when they do not come, or when somebody interrupts.

    Spares are waited for a few seconds more, and may join later.
    """
    began = board.now()
    enough_since: float | None = None
    limit = board.spec.init_timeout_min * 60
    said = 0
    board.history.state(picture(board))

    def look(now: float) -> Evidence | bool | None:
        nonlocal enough_since, said
        if (stop := interrupted(board)) is not None:
            return stop
        if len(board.nodes.healthy) >= board.spec.nodes:
            enough_since = now if enough_since is None else enough_since
            if not board.nodes.missing or now - enough_since >= board.timing.spare_wait_s:
                return True
        else:
            enough_since = None
            if sum(n.bad is None for n in board.nodes.all) < board.spec.nodes:
                return _unusable(board)
        if board.nodes.missing and _say_at(said) <= now - began < limit - 1:  # the end says it, too
            said += 1
            _say_missing(board, now - began)
        return None

    found = await until(board, look, timeout_s=limit)
    if isinstance(found, Evidence):
        return found
    if found is None and len(board.nodes.healthy) < board.spec.nodes:
        return _too_few(board, limit)
    return None


def _unusable(board: Board) -> Evidence:
    """Return the evidence that too many nodes cannot be used: there is nothing to wait for."""
    bad = [n for n in board.nodes.all if n.bad is not None]
    why = "; ".join(f"{n.host}: {n.bad}" for n in bad)
    return Evidence(Kind.PREFLIGHT, f"checks failed on {why}", Cause.plain("node", why), tuple(n.host for n in bad))


def _say_at(count: int) -> float:
    return _SAY_AFTER_S[count] if count < len(_SAY_AFTER_S) else _SAY_EVERY_S * (count - len(_SAY_AFTER_S) + 1)


def _say_missing(board: Board, waited_s: float) -> None:
    who = missing(board)
    ranks = [rank for entry in who for rank in entry["ranks"]]
    board.history.event("node_missing", nodes=[e["host"] for e in who], ranks=ranks, waited_s=round(waited_s, 1))


def _too_few(board: Board, limit_s: float) -> Evidence:
    who = missing(board)
    limit = f"{limit_s / 60:g} min (distributed.init_timeout_min)"
    if not who:
        bad = "; ".join(f"{n.host}: {n.bad}" for n in board.nodes.all if n.bad)
        return Evidence(
            Kind.NODES_MISSING, f"too few nodes can be used after {limit}: {bad}", Cause.plain("start", bad)
        )
    ranks = [rank for entry in who for rank in entry["ranks"]]
    names = ", ".join(e["host"] for e in who)
    text = f"node{'s' if len(who) > 1 else ''} {names}{f' ({named_ranks(ranks)})' if ranks else ''} did not start within {limit}"
    _say_missing(board, limit_s)
    return Evidence(Kind.NODES_MISSING, text, Cause.plain("start", text), tuple(e["host"] for e in who))


async def preflight(board: Board) -> Evidence | None:
    """Have every node check itself; nodes that fail are not used. Evidence when too few are left."""
    board.phase = "preflight"
    asked = board.nodes.healthy
    began = board.now()
    peers = [CheckPeer(node=n.index, host=n.host, address=n.address) for n in asked]
    port = await _store_of_checks(board, asked)
    for node in asked:
        node.send(RunChecks(port=port, peers=peers))

    def look(now: float) -> Evidence | bool | None:
        if (stop := interrupted(board)) is not None:
            return stop
        return True if all(n.index in board.preflight or not n.here for n in asked) else None

    found = await until(board, look, timeout_s=board.timing.preflight_s)
    for node in asked:
        node.send(EndRound(round=CHECKS_ROUND))
    if isinstance(found, Evidence):
        return found
    silent = [n.host for n in asked if n.here and n.index not in board.preflight]
    if silent:
        board.history.event(
            "warning", text=f"the checks of {', '.join(silent)} did not end in time; these nodes are used anyway"
        )
    return _judge(board, board.now() - began)


async def _store_of_checks(board: Board, asked: list[Node]) -> int | None:
    """The port of a store for the checks' all-reduce; None where there is no network to try, or no store."""
    if not asked or board.spec.batch == "local" or (len(asked) == 1 and board.spec.backend != "nccl"):
        return None
    asked[0].send(StartStore(round=CHECKS_ROUND))
    port = await until(
        board,
        lambda now: board.ports.get(CHECKS_ROUND) if interrupted(board) is None else 0,
        timeout_s=board.timing.store_s,
    )
    return port or None


def _judge(board: Board, seconds: float) -> Evidence | None:
    checks, failed = [], []
    for index, answer in sorted(board.preflight.items()):
        node = board.nodes.all[index]
        checks += [{"host": node.host, **check.to_wire()} for check in answer.checks]
        if not answer.ok:
            details = "; ".join(f"{check.name}: {check.detail}" for check in answer.checks if not check.ok)
            node.bad = details or "its checks failed"
            failed.append(node)
    speeds = [a.bandwidth_gb_s for a in board.preflight.values() if a.bandwidth_gb_s is not None]
    board.history.event(
        "preflight",
        ok=not failed,
        seconds=round(seconds, 2),
        checks=checks,
        bandwidth_gb_s=min(speeds) if speeds else None,
    )
    if not failed:
        return None
    hosts = tuple(n.host for n in failed)
    why = "; ".join(f"{n.host}: {n.bad}" for n in failed)
    board.history.event("excluded", hosts=list(hosts), why=why)
    if len(board.nodes.healthy) >= board.spec.nodes:
        return None
    return Evidence(Kind.PREFLIGHT, f"checks failed on {why}", Cause.plain("node", why), hosts)
