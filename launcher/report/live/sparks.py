"""Bars and sparklines made of characters. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

_LEVELS = "▁▂▃▄▅▆▇█"
_PARTS = " ▏▎▍▌▋▊▉█"


def bar(share: float, width: int) -> str:
    """Draw ``share`` (0 to 1) of ``width`` characters, in eighths."""
    full, part = divmod(int(min(max(share, 0.0), 1.0) * width * 8) if math.isfinite(share) else 0, 8)
    return ("█" * full + _PARTS[part].strip()).ljust(width, "─")


def spark(values: Sequence[float | None], width: int) -> str:
    """Draw the values, averaged into at most ``width`` columns, as a line of blocks. A gap is a space."""
    columns = min(width, len(values))
    parts = [values[i * len(values) // columns : (i + 1) * len(values) // columns] for i in range(columns)]
    known = [[v for v in part if v is not None] for part in parts]
    means = [sum(part) / len(part) for part in known if part]
    if not means:
        return ""
    low, high = min(means), max(means)
    span = high - low
    blocks = iter(_LEVELS[min(7, int((v - low) / span * 8)) if span > 0 else 3] for v in means)
    return "".join(next(blocks) if part else " " for part in known)
