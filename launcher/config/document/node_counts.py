"""Read how many nodes a job wants: a number, or a range in SLURM's notation."""

from __future__ import annotations

import re
from typing import NoReturn

from launcher.config.document.source import value_text

_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")


def node_count(value: object) -> object:
    """Return ``value`` where it is a number or a range such as ``2-4``; one whose ends are equal as that number. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if value is None:
        raise ValueError("has no value; set a whole number or a range such as 2-4, or remove this key")
    if not isinstance(value, str) or not value.isascii():
        return _refuse(value)
    if re.fullmatch(r"-?\d{1,9}", value):
        raise ValueError(f'must be a whole number, not "{value}"; remove the quotes')
    found = _RANGE.fullmatch(value)
    if found is None:
        return _refuse(value)
    least, most = int(found[1]), int(found[2])
    if not 1 <= least <= most:
        raise ValueError(
            f'"{value}" is not a range of node counts: write the smaller one first, at least 1, such as 2-4'
        )
    return value if least < most else most


def _refuse(value: object) -> NoReturn:
    raise ValueError(f"must be a whole number or a range such as 2-4, not {value_text(value)}")


def bounds(nodes: int | str) -> tuple[int, int]:
    """Return the fewest and the most nodes of what `node_count` has let through."""
    if isinstance(nodes, int):
        return nodes, nodes
    least, _, most = nodes.partition("-")
    return int(least), int(most)
