"""Rules that hold between keys, and what a text may hold that reaches sbatch."""

from __future__ import annotations

from typing import Any

from launcher.config.schema import Job
from launcher.config.source import Problem

__all__ = ["check"]


def check(values: dict[str, Any], job: Job | None) -> list[Problem]:
    """Every broken rule; ``job`` is None where validation failed, and only rules on plain values apply."""
    problems: list[Problem] = []
    named = [key for key in ("task", "function", "script") if values.get(key) is not None]
    if not named:
        problems.append(Problem("", "nothing to run: give one of task, function and script"))
    elif len(named) > 1:
        problems.append(Problem(named[1], f"give only one of task, function and script, not {' and '.join(named)}"))
    return problems
