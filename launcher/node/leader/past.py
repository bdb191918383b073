"""Reads what earlier attempts have left, before the leader begins. Raises OSError."""

from __future__ import annotations

from collections import defaultdict

from launcher.node.allocation.allocation import Allocation
from launcher.node.checkpoints.claims import Claim
from launcher.node.leader.board import Board
from launcher.node.leader.finish import Ending
from launcher.node.policy.budgets import Budgets
from launcher.run import event_lines
from launcher.run.asking import load_object
from launcher.run.events import (
    AttemptEnded,
    AttemptStarted,
    Event,
    Excluded,
    JobNamed,
    LeaderRevived,
    NodeLost,
    PreflightDone,
    ReplacementAsked,
    Requeued,
    RoundStarted,
    RunSubmitted,
    Saved,
    last_of,
)
from launcher.run.paths import RunPaths


def ended_already(paths: RunPaths, allocation: Allocation) -> Ending | None:
    """Return the end of a run that is over or was handed to another job; None when this attempt may begin."""
    outcome = load_object(paths.outcome, paths.root)
    if outcome is not None:
        return Ending(str(outcome.get("state")), f"The run had ended already: {outcome.get('reason')}", 0)
    match last_of(event_lines.recall(paths.events), JobNamed):
        case Requeued(how="continuation", job_id=str(other)) if other and allocation.job_id not in (None, "", other):
            return Ending("requeued", f"Job {other} continues the run.", 0)
    return None


def first_of_submission(past: list[Event]) -> bool:
    """Return whether no round has begun since the run was last submitted."""
    return not isinstance(last_of(past, RunSubmitted, RoundStarted), RoundStarted)


def waiting_since(past: list[Event]) -> float | None:
    """Return when the wait for this attempt's allocation began."""
    last = last_of(past, RunSubmitted, Requeued, AttemptEnded)
    return None if last is None else last.t


def began(past: list[Event], claim: Claim) -> float | None:
    """Return when the attempt began that this leader goes on in; None when it begins one."""
    last = last_of(past, AttemptStarted)
    return last.t if claim.leader and last is not None and last.attempt == claim.attempt else None


def leader_host(past: list[Event], claim: Claim) -> str | None:
    """Return the host of the leader before this one in the same attempt; None: not known."""
    match last_of([e for e in past if e.attempt == claim.attempt], AttemptStarted, LeaderRevived):
        case LeaderRevived() as last:
            return last.moved_to or last.host
        case AttemptStarted(host=host):
            return host
    return None


def restore(board: Board, past: list[Event]) -> tuple[int, bool]:
    """Put on the board what leaders of this attempt that died have learned of its nodes and checkpoints.

    Returns the number of the next round, and whether the nodes have been checked.
    """
    mine = [e for e in past if e.attempt == board.attempt]
    for asked in mine:
        if isinstance(asked, ReplacementAsked) and asked.job_id is not None:
            while len(board.nodes.all) < (asked.node or 0):
                board.nodes.add("").bad = "SLURM did not accept its job"
            board.nodes.add(asked.job_id)
    bad = {host: e.why or "" for e in mine if isinstance(e, Excluded) for host in e.hosts}
    losses = _losses(past, board.attempt)
    for node in board.nodes.all:
        node.bad = bad.get(node.name, node.bad)
        node.losses = losses[node.name]
    board.saver.trusted.update(e.step for e in mine if isinstance(e, Saved) and e.step is not None)
    rounds = [e.round for e in mine if isinstance(e, RoundStarted) and e.round is not None]
    return max(rounds, default=-1) + 1, any(isinstance(e, PreflightDone) for e in mine)


def _losses(past: list[Event], attempt: int) -> defaultdict[str, list[int]]:
    """Return, by host, how much progress had been committed at each loss of its agent in this attempt (`Node.losses`)."""
    found, budgets = defaultdict[str, list[int]](list), Budgets()
    for event in past:
        budgets.feed(event)
        if isinstance(event, NodeLost) and event.attempt == attempt and event.host and event.why != "cut_off":
            found[event.host].append(budgets.advances)
    return found
