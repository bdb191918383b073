"""What a run's page shows as values for other programs: ``report --json``. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any

from launcher.frozen import field_values, frozen
from launcher.report.formats import plain_json
from launcher.report.page.page import PageData, changes, mean_speed
from launcher.report.text.status import standing


@frozen(kw_only=True)
class Figures:
    """What a page shows of a run beyond what ``status`` says."""

    why: dict[str, Any]
    """The object of `launcher why --json`."""
    mean_rate: float | None
    """Steps per second of useful time."""
    curves: list[dict[str, Any]]
    """[{name, x, y}]: every metric over steps, about 800 points at most; null is not finite. Spikes stay, but where metrics.jsonl is
    larger than 8 MB: there some lines are picked."""
    usage: dict[str, list[dict[str, Any]]]
    """By throughput (steps/s), gpu and cpu (%), gpu_memory and memory (GB), gpu_power (W): such curves over time: highest, mean, lowest rank."""
    spread: list[dict[str, Any]]
    """[{rank, host, low, middle, high, over}]: each rank's step time in seconds (10th, 50th and 90th percentile), and by what
    share its median exceeds that of all ranks."""
    environment: dict[str, Any]
    """What it was submitted with: host, user, system, python, packages, command, code, variables (without secrets)."""
    previous: str | None
    """The run that its job is compared with: the one before of that name, or the first of several RUNs."""
    changed: list[str]
    """How its job differs from that one's: lines of a unified diff."""


def figures(run: PageData, previous: tuple[str, str] | None) -> dict[str, Any]:
    """Return the object of ``report --json``; ``previous``: name and job YAML of the run that it is compared with."""
    shown = Figures(
        why=run.why.as_json(),
        mean_rate=mean_speed(run),
        curves=[one.as_json() for one in run.metrics],
        usage={name: [one.as_json() for one in group] for name, group in run.usage.items()},
        spread=[dataclasses.asdict(one) for one in run.spread],
        environment=run.environment,
        previous=previous[0] if previous is not None else None,
        changed=[line for _, line in changes(previous, run)],
    )
    value: dict[str, Any] = plain_json(
        {**standing(run.summary, run.book, run.advice, run.wrong), **field_values(shown)}
    )
    return value
