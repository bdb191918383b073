"""Bars and sparklines out of characters; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["bar", "spark"]

_LEVELS = "▁▂▃▄▅▆▇█"
_PARTS = " ▏▎▍▌▋▊▉█"


def bar(share: float, width: int) -> str:
    """``share`` (0 to 1) of ``width`` characters, in eighths."""
    share = min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0
    eighths = int(share * width * 8)
    full, part = divmod(eighths, 8)
    return ("█" * full + (_PARTS[part] if part else "")).ljust(width, "─")[:width]


def spark(values: Sequence[float | None], width: int) -> str:
    """The values, averaged into ``width`` columns, as a line of blocks; a gap is a space."""
    if not values or width <= 0:
        return ""
    columns = _columns(values, width)
    known = [v for v in columns if v is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    span = high - low
    return "".join(" " if v is None else _LEVELS[min(7, int((v - low) / span * 8)) if span > 0 else 3] for v in columns)


def _columns(values: Sequence[float | None], width: int) -> list[float | None]:
    if len(values) <= width:
        return list(values)
    out: list[float | None] = []
    for i in range(width):
        part = [v for v in values[i * len(values) // width : (i + 1) * len(values) // width] if v is not None]
        out.append(sum(part) / len(part) if part else None)
    return out
