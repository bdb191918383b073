"""Amounts for people."""

from __future__ import annotations

__all__ = ["size"]


def size(count: float | None) -> str:
    """Bytes, in powers of 1000: 3.1 MB, 128 GB; empty for None."""
    if count is None:
        return ""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"
        count /= 1000
    return ""
