"""Since which step metrics of a run have been NaN or infinite, by its history. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from launcher.run.events import Event, NotFinite, RoundStarted


def not_finite_since(history: Iterable[Event]) -> dict[str, int]:
    """Return by metric the first step from which on it was not finite, unless it was again or the run went back to before it.

    A later round that goes on from there tells of its own first step: its checkpoint is one of those that hold the trouble.
    """
    bad: dict[str, int] = {}
    for event in history:
        match event:
            case NotFinite(metric=str(metric), step=int(step), until=None):
                bad.setdefault(metric, step)
            case NotFinite(metric=str(metric)):
                bad.pop(metric, None)
            case RoundStarted(resume_step=resumed):
                bad = {metric: step for metric, step in bad.items() if resumed is not None and resumed >= step}
    return bad
