"""What a part has found out, and the page made of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, TextIO


@dataclass(frozen=True)
class Figure:
    """One finding: a value with its unit, or that something holds."""

    name: str
    value: float | str | bool
    unit: str = ""
    goal: str = ""
    """What was aimed at, in words; empty: nothing."""
    ok: bool | None = None
    """Whether the goal is reached; None: there is none."""
    note: str = ""

    @property
    def shown(self) -> str:
        """The value as people read it."""
        if isinstance(self.value, bool):
            return "yes" if self.value else "no"
        value = f"{self.value:.4g}" if isinstance(self.value, float) else str(self.value)
        return f"{value} {self.unit}".strip()

    def write(self, file: TextIO) -> None:
        """Add a line; it is there even when the part is ended after it."""
        file.write(json.dumps(asdict(self)) + "\n")
        file.flush()


def holds(name: str, value: bool, note: str = "") -> Figure:
    """A finding that has to be true."""
    return Figure(name, value, goal="yes", ok=value, note=note)


def at_most(name: str, value: float, unit: str, limit: float, *, counts: bool, note: str = "") -> Figure:
    """A measured value with a limit; ``counts``: on GPUs. On CPUs, whatever else they do, no time is a goal."""
    return Figure(
        name, value, unit, f"at most {limit:g} {unit}" if counts else "", value <= limit if counts else None, note
    )


def page(parts: list[dict[str, Any]]) -> str:
    """Return docs/gpu.md: the machine, then each part with its figures, or why it was skipped.

    The machine is that of the latest part; a part that was run on another one, or on another day, says so.
    """
    facts = max((part["machine"] for part in parts), key=lambda machine: str(machine["date"]))
    lines = [
        "# GPUs",
        "",
        "Written by `make gpu`: measurements of the launcher on the GPUs of the machine below.",
        "",
    ]
    lines += ["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in facts.items()), ""]
    for part in parts:
        lines += [f"## {part['name']}", "", part["about"], ""]
        if other := [f"{name} {value}" for name, value in part["machine"].items() if value != facts[name]]:
            lines += [f"Run with: {', '.join(other)}.", ""]
        if part["skipped"]:
            lines += [f"Skipped: {part['skipped']}.", ""]
        if part["figures"]:
            lines += ["| | measured | goal | |", "| --- | --- | --- | --- |"]
            lines += [_row(Figure(**values)) for values in part["figures"]]
            lines += [""]
        if part["error"]:
            lines += [f"**Failed**: {part['error']}", ""]
        lines += [f"This part took {part['seconds']:.0f} s.", ""]
    return "\n".join(lines)


def _row(figure: Figure) -> str:
    mark = {True: "", False: "**not reached**", None: ""}[figure.ok]
    last = "; ".join(filter(None, [mark, figure.note]))
    return f"| {figure.name} | {figure.shown} | {figure.goal} | {last} |"
