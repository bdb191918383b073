"""Waits for the nodes and checks them, before the first round."""

from __future__ import annotations

import itertools

from launcher.node.leader import revivals
from launcher.node.leader.board import Board, caused
from launcher.node.leader.nodes import Node
from launcher.node.leader.picture import missing, picture
from launcher.node.policy.decisions import Evidence, Kind
from launcher.node.wire.messages import EndRound, RunChecks, StartStore
from launcher.run.event_parts import Cause
from launcher.run.units import named_ranks

CHECKS_ROUND = -1
"""The round number of the checks' store and processes: they are ended like a round's."""


_NEIGHBOURS = 32
"""Other nodes whose names a node looks up before the first round."""


async def await_nodes(board: Board) -> Evidence | None:
    """Wait until enough nodes are here; evidence when they do not come, or when somebody interrupts.

    Spares are waited for a few seconds more, and may join later.
    """
    began = board.now()
    enough_since: float | None = None
    timing, again = board.timing, board.regathers
    limit_s = board.spec.init_timeout_min * 60
    spare_wait_s = timing.rejoin_s if again else timing.spare_wait_s
    times = itertools.chain((5.0, 15.0, 30.0), itertools.count(60.0, 60.0))
    report_at = next(times)
    board.history.state(picture(board))

    def look(now: float) -> Evidence | bool | None:
        nonlocal enough_since, report_at
        if board.interrupted is not None:
            return board.interrupted
        if again and now - began > timing.rejoin_s + timing.revive_s + board.start_s:
            return False
        if len(board.nodes.healthy) >= board.spec.nodes:
            enough_since = now if enough_since is None else enough_since
            if not board.nodes.missing or now - enough_since >= spare_wait_s:
                return True
        else:
            enough_since = None
            if again and now - began >= timing.rejoin_s:
                for node in board.nodes.missing:
                    revivals.ask_for(board, node)
            bad = [n for n in board.nodes.all if n.bad is not None]
            if len(board.nodes.all) - len(bad) < board.needed_nodes:
                return _unusable(bad)  # there is nothing to wait for
            comes = again and now - began < 2 * timing.rejoin_s and any(n.comes for n in board.nodes.all)
            checked = now - began >= timing.preflight_s or not any(n.here and n.unchecked for n in board.nodes.all)
            if not board.nodes.missing and not comes and checked:
                return True  # of a range SLURM may have given fewer, and no more will come
        if board.nodes.missing and report_at <= now - began < limit_s - 1:  # the end reports it, too
            report_at = next(times)
            _report_missing(board, now - began)
        return None

    found = await board.until(look, timeout_s=limit_s)
    if isinstance(found, Evidence):
        return found
    return _too_few(board, limit_s) if len(board.nodes.healthy) < board.needed_nodes else None


def _unusable(bad: list[Node]) -> Evidence:
    """Return the evidence that too few nodes are left, since these cannot be used."""
    why = _reasons(bad)
    text = f"checks failed on {why}" if any(n.checks for n in bad) else f"nodes were lost ({why})"
    return Evidence(Kind.PREFLIGHT, text, Cause.plain("node", why), tuple(n.host for n in bad))


def without(board: Board) -> Evidence:
    """Return the evidence that too few nodes are left for a round."""
    gone = tuple(n.host for n in board.nodes.all if not n.healthy and n.job is None)
    text = f"node{'s' if len(gone) > 1 else ''} {', '.join(gone)} cannot be used"
    return Evidence(Kind.NODE_LOST, text, hosts=gone)


def _reasons(bad: list[Node]) -> str:
    return "; ".join(f"{n.host}: {n.bad}" for n in bad)


def _report_missing(board: Board, waited_s: float) -> tuple[list[str], list[int]]:
    """Report the missing nodes and return their hosts and ranks."""
    who = missing(board)
    hosts = [entry["host"] for entry in who]
    ranks = [rank for entry in who for rank in entry["ranks"]]
    board.history.event("node_missing", nodes=hosts, ranks=ranks, waited_s=round(waited_s, 1))
    return hosts, ranks


def _too_few(board: Board, limit_s: float) -> Evidence:
    hosts, ranks = _report_missing(board, limit_s)
    who = f"node{'s' if len(hosts) > 1 else ''} {', '.join(hosts)}{f' ({named_ranks(ranks)})' if ranks else ''}"
    text = f"{who} did not start within {limit_s / 60:g} min (distributed.init_timeout_min)"
    if board.regathers:
        text = f"{who} did not come back after the leader had died"
    return caused(Kind.NODES_MISSING, text, tuple(hosts))


async def preflight(board: Board) -> Evidence | None:
    """Have every node check itself; nodes that fail are not used. Evidence when too few are left."""
    board.phase = "preflight"
    asked = board.nodes.healthy
    began = board.now()
    port = await _store_of_checks(board, asked)
    send_checks(asked, port)

    ended = False

    def end_processes() -> None:
        for node in asked:
            node.send(EndRound(round=CHECKS_ROUND))

    def look(now: float) -> Evidence | bool | None:
        nonlocal ended
        if not ended and not all(n.here for n in asked):
            ended = True
            end_processes()  # their all-reduce would wait for the lost node
        return board.interrupted or all(n.checks or not n.here for n in asked) or None

    found = await board.until(look, timeout_s=board.timing.preflight_s)
    end_processes()
    if isinstance(found, Evidence):
        return found
    silent = [n.host for n in asked if n.here and not n.checks]
    if silent:
        board.history.warn(f"the checks of {', '.join(silent)} did not end in time; these nodes are used anyway")
    return _judge(board, board.now() - began)


def send_checks(asked: list[Node], port: int | None) -> None:
    """Have these nodes check themselves, each with its neighbours' names: all names on all nodes would be N² look-ups."""
    names = [node.address for node in asked]
    for rank, node in enumerate(asked):
        near = [names[(rank + step) % len(names)] for step in range(1, _NEIGHBOURS + 1)]
        node.send(
            RunChecks(
                port=port, rank=rank, world_size=len(asked), names=list(dict.fromkeys([names[0], names[rank], *near]))
            )
        )


async def _store_of_checks(board: Board, asked: list[Node]) -> int | None:
    """Return the port of a store for the checks' all-reduce; None where there is no network to try, or no store."""
    if not asked or board.spec.batch == "local" or (len(asked) == 1 and board.spec.backend != "nccl"):
        return None
    asked[0].send(StartStore(round=CHECKS_ROUND))
    port = await board.until(
        lambda now: 0 if board.interrupted else board.ports.get(CHECKS_ROUND), timeout_s=board.timing.store_s
    )
    return port or None


def _judge(board: Board, seconds: float) -> Evidence | None:
    checks, failed, speeds = [], [], []
    for node in board.nodes.all:
        if (done := node.checks) is None:
            continue
        checks += [{"host": node.host, **check.to_wire()} for check in done.checks]
        if done.bandwidth_gb_s is not None:
            speeds.append(done.bandwidth_gb_s)
        if not done.ok:
            details = "; ".join(f"{check.name}: {check.detail}" for check in done.checks if not check.ok)
            node.bad = details or "its checks failed"
            failed.append(node)
    board.history.event(
        "preflight",
        ok=not failed,
        seconds=round(seconds, 2),
        checks=checks,
        bandwidth_gb_s=min(speeds, default=None),
    )
    if not failed:
        return None
    board.history.event("excluded", hosts=[n.host for n in failed], why=_reasons(failed))
    return _unusable(failed) if len(board.nodes.healthy) < board.needed_nodes else None
