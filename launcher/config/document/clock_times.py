"""Read and write clock times as SLURM writes them."""

from __future__ import annotations

import re

_CLOCK = re.compile(r"(?:(?P<d>\d+)-)?(?P<h>\d+):(?P<m>[0-5]?\d):(?P<s>[0-5]?\d)")
_DAYS = re.compile(r"(?P<d>\d+)-(?P<h>\d+)(?::(?P<m>[0-5]?\d))?")
_LIMIT_MIN = 365 * 24 * 60


def minutes(value: object) -> object:
    """Return the minutes of a clock time (``"24:00:00"``, ``"1-12"``, ``"1-12:30:00"``, ``"90"``), seconds rounded up.

    Anything but text is returned as it is. Raises ValueError with a sentence for text that is no clock time.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    if len(text) > 40:
        raise ValueError("is not a valid time: it has more than 40 characters")
    if text.isdecimal() and text.isascii():
        return _bounded(int(text), value)
    if re.fullmatch(r"\d+:\d+", text):
        raise ValueError(
            f'"{text}" is ambiguous: hours and minutes, or minutes and seconds as SLURM reads it; '
            f'write "{text}:00" for the first or "0:{text}" for the second'
        )
    found = _CLOCK.fullmatch(text) or _DAYS.fullmatch(text)
    if not found or not text.isascii():
        raise ValueError(
            f'"{text}" is not a valid time; write minutes, or a quoted clock time such as "24:00:00" or "1-12:00:00"'
        )
    part = {k: int(v or 0) for k, v in found.groupdict().items()}
    whole = part.get("d", 0) * 1440 + part["h"] * 60 + part.get("m", 0)
    return _bounded(whole + (part.get("s", 0) > 0), value)


def _bounded(value: int, text: str) -> int:
    if not 1 <= value <= _LIMIT_MIN:
        raise ValueError(f'"{text}" is {value:,} minutes: it must be at least 1 minute and at most 365 days')
    return value


def time_limit_text(value_min: int) -> str:
    """Write minutes as SLURM shows a time limit: 1440 is ``1-00:00:00``."""
    days, rest = divmod(value_min, 1440)
    text = f"{rest // 60:02d}:{rest % 60:02d}:00"
    return f"{days}-{text}" if days else text
