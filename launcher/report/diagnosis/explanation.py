"""What is said of a root cause, and the words that all of it shares; pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from launcher.frozen import frozen
from launcher.report import formats
from launcher.report.diagnosis.evidence import Root
from launcher.report.model.history import History, as_number
from launcher.report.model.summary import RunSummary
from launcher.run.causes import rank_clause
from launcher.run.units import all_ranks, named_ranks, short_list


@frozen
class Explanation:
    """What is said of a root cause. ``{run}`` in ``next`` stands for the run's short name."""

    sentence: str
    next: str
    """What the user can do."""
    errors: list[str] = field(default_factory=list)
    """The error as it was said."""
    log: list[str] = field(default_factory=list)
    """Lines of the log, where they tell more."""


Explain = Callable[[Root, History, RunSummary], Explanation]


def who(root: Root, h: History) -> str:
    """``Rank 5 (gpu022, GPU 1)``, or all that failed in the same way: ``All 4 ranks``, ``Ranks 0-2``."""
    if len(root.ranks) > 1:
        return (all_ranks(len(root.ranks)) if root.everybody else named_ranks(root.ranks)).capitalize()
    if root.rank is None:
        return f"A worker on {root.host}" if root.host else "A worker"
    gpus = int(as_number(h.spec.get("gpus_per_node")) or 0)
    # More ranks than GPUs share them in turns, as `choose_device` has it.
    place = [
        p for p in (root.host, f"GPU {root.local_rank % gpus}" if gpus and root.local_rank is not None else "") if p
    ]
    return f"Rank {root.rank}" + (f" ({', '.join(place)})" if place else "")


def of_them(root: Root, ranks: list[int]) -> str:
    """``ranks 0-3``; of ranks that were drawn out of many: ``all``, ``ranks 0, 8, 16 and 61 more``."""
    if root.looked_at is None or len(ranks) < 3:
        return named_ranks(ranks)
    return "all" if len(ranks) == root.looked_at else f"ranks {short_list([str(rank) for rank in ranks])}"


def at_step(root: Root) -> str:
    """`` at step 41,262``, or nothing."""
    return f" at step {formats.count(root.step)}" if root.step is not None else ""


def errors_of(root: Root) -> list[str]:
    """The exception with its message, whole on one line."""
    if root.trace is None or not root.trace.exception:
        return []
    message = formats.clean(root.trace.message, 300)
    related = [f"caused by {formats.clean(line, 200)}" for line in root.cause.caused_by]
    return [f"{root.trace.exception}: {message}" if message else root.trace.exception, *related]


def last_words(root: Root, count: int = 3) -> list[str]:
    """The last lines of the log that say something."""
    return [formats.clean(line, 160) for line in root.log if line.strip()][-count:]


def what_happened(root: Root, h: History, message: str | None = None, last: str = "", limit: str = "") -> str:
    """Who did what: the sentence without its full stop."""
    trace, cause = root.trace, root.cause
    said = formats.clean(trace.message.strip().splitlines()[0], 160) if trace and trace.message.strip() else ""
    clause = rank_clause(
        root.kind,
        root.step,
        exception=trace.exception if trace else None,
        message=said if message is None else message,
        last=last,
        signal=cause.signal,
        exit_code=cause.exit_code,
        limit=limit,
    )
    return f"{who(root, h)} {clause}"
