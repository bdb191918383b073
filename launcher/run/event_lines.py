"""The file ``events.jsonl``: one event on each line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from launcher.run.asking import load_lines
from launcher.run.events import Event, parse_event
from launcher.run.files import append_line, read_lines


def append(path: Path, value: Event) -> None:
    """Append ``value`` to the history at ``path``, durably. Raises OSError when the disk refuses."""
    append_line(path, value.raw, durable=True)


def read(path: Path, *kinds: type[Event]) -> list[Event]:
    """Return the history at ``path``, or its events of these kinds; torn lines are skipped, a missing file is empty."""
    lines = read_lines(path)
    if kinds:
        types = {kind.type for kind in kinds}
        lines = [line for line in lines if str(line.get("type")) in types]
    return _parsed(lines)


def recall(path: Path) -> list[Event]:
    """Return the same for those that decide by it. Raises OSError when the history is not known."""
    return _parsed(load_lines(path, path.parent))


def _parsed(lines: list[dict[str, Any]]) -> list[Event]:
    return [parse_event(line, []) for line in lines if isinstance(line.get("type"), str)]
