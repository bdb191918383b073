"""What a run's allocations cost: node, GPU and CPU hours; pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from launcher.frozen import frozen
from launcher.report.model.history import History, as_number
from launcher.report.model.timeline import Segment
from launcher.run import events as ev


@frozen(kw_only=True)
class Cost:
    """Hours of all allocations, spares included."""

    node: float
    gpu: float
    spare_gpu: float
    """Of ``gpu``: of nodes that stood by."""
    cpu: float


def cost_of(history: History, segments: list[Segment]) -> Cost:
    """Add up what was held, each attempt with the resources that it was submitted with."""
    asked, changes = _asked(history), _changes(history)
    node = gpu = spare_gpu = cpu = 0.0
    for s in segments:
        if s.kind in ("queued", "away"):
            continue
        of = asked.get(s.attempt) or _resources(history, None)
        held, spare = s.seconds * (of.nodes + of.spares) / 3600, s.seconds * of.spares / 3600
        if of.ranged and s.attempt in changes:
            # SLURM may have given fewer than a range's most, another number to each attempt, and some of them later.
            came = changes[s.attempt].items()
            held, spare = (_node_hours(came, s, beyond) for beyond in (0, of.nodes))
        node += held
        gpu += held * of.gpus
        spare_gpu += spare * of.gpus
        cpu += held * of.cpus
    return Cost(node=node, gpu=gpu, spare_gpu=spare_gpu, cpu=cpu)


@frozen
class _Resources:
    """What one submission asked for; ``gpus`` and ``cpus`` of a node."""

    nodes: int
    spares: int
    gpus: float
    cpus: float
    ranged: bool


def _asked(history: History) -> dict[int | None, _Resources]:
    """Return what each attempt was submitted with."""
    found: dict[int | None, _Resources] = {}
    newest = _resources(history, None)
    for e in history.events:
        if isinstance(e, ev.RunSubmitted):
            newest = _resources(history, e)
        else:
            found.setdefault(e.attempt, newest)
    return found


def _resources(history: History, e: ev.RunSubmitted | None) -> _Resources:
    """Return what was asked for; what the event of an older version does not tell is as in the newest spec."""
    told = {} if e is None else {key: getattr(e, key) for key in ("nodes", "spare_nodes", "tasks_per_node")}
    if e is not None and e.gpus_per_node is not None:
        told |= {key: getattr(e, key) for key in ("gpus_per_node", "cpus_per_task")} | {
            "least_nodes": e.least_nodes or 0
        }
    values = {**history.spec, **{key: value for key, value in told.items() if value is not None}}
    nodes, spares, gpus, tasks, cpus, least = (
        as_number(values.get(key)) or 0
        for key in ("nodes", "spare_nodes", "gpus_per_node", "tasks_per_node", "cpus_per_task", "least_nodes")
    )
    return _Resources(int(nodes), int(spares), gpus, tasks * cpus, least > 0)


def _changes(history: History) -> dict[int | None, Counter[float]]:
    """Return by how much the number of nodes of each attempt changed when; those of before its first round were there from its beginning.

    A node that is silent is held until SLURM drops it; its own job's end takes one that came in place of another (`resources.replace`).
    """
    changes: dict[int | None, Counter[float]] = {}
    held: dict[int | None, dict[int | None, str | None]] = {}
    begun: set[int | None] = set()
    for e in history.of(ev.NodeJoined, ev.RoundStarted, ev.NodeLost, ev.LeaderRevived, ev.SignalReceived):
        here, change = held.setdefault(e.attempt, {}), changes.setdefault(e.attempt, Counter())
        match e:
            case ev.RoundStarted():
                begun.add(e.attempt)
            case ev.NodeJoined() if e.node not in here:
                here[e.node] = e.host
                change[e.t if e.attempt in begun else 0.0] += 1
            case (
                ev.NodeLost(host=host, why="slurm")
                | ev.LeaderRevived(host=host, moved_to=str())
                | ev.SignalReceived(host=host, meaning="node_leaves")
            ):
                for node in [n for n, its in here.items() if its == host]:
                    del here[node]
                    change[e.t] -= 1
    return {attempt: change for attempt, change in changes.items() if change}


def _node_hours(changes: Iterable[tuple[float, int]], s: Segment, beyond: int) -> float:
    """Return nodes times hours of a segment, of those nodes that were there beyond so many."""
    total, count, at = 0.0, 0, s.start
    for t, change in [*sorted(changes), (math.inf, 0)]:
        until = min(max(t, s.start), s.end)
        total += max(0, count - beyond) * (until - at)
        count, at = count + change, until
    return total / 3600
