"""Amounts, lists and ranks as people read them, on every floor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby


def size(count: float | None) -> str:
    """Bytes, in powers of 1000: 3.1 MB, 128 GB; empty for None."""
    if count is None:
        return ""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"


def whole_number(text: str) -> int | None:
    """The number that ``text`` is, 0 or more; None where it is no number of at most 18 digits ("²".isdigit() is True)."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def is_job_id(value: object) -> bool:
    """Return whether that is a job id of SLURM's: ``123``, an array's element ``123_4`` or a part of a heterogeneous job ``123+1``."""
    first, _, second = value.replace("+", "_", 1).partition("_") if isinstance(value, str) else ("", "", "")
    return bool(whole_number(first)) and (value == first or whole_number(second) is not None)


def is_secret(text: str) -> bool:
    """Return whether that can be a run's secret: of a shorter one, or an empty one, anybody could make the keys."""
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


def tilde(path: str, home: str) -> str:
    """``~/runs``, of a path below ``home``."""
    return "~" + path[len(home) :] if home and path.startswith(home.rstrip("/") + "/") else path


def plural(n: int, what: str) -> str:
    """``1 step``, ``14 steps``."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def short_list(names: Sequence[str], limit: int = 4) -> str:
    """``a, b, c and 13 more``."""
    if len(names) <= limit:
        return ", ".join(names)
    return f"{', '.join(names[: limit - 1])} and {len(names) - limit + 1} more"


def named_ranks(numbers: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0-4, 6, 7``: three or more in a row are shortened."""
    parts: list[str] = []
    ordered = sorted(set(numbers))
    for _, group in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0]):
        row = [str(number) for _, number in group]
        parts += row if len(row) < 3 else [f"{row[0]}-{row[-1]}"]
    return f"rank{'s' if len(ordered) > 1 else ''} {', '.join(parts)}"


def all_ranks(count: int) -> str:
    """``both ranks``, ``all 4 ranks``."""
    return "both ranks" if count == 2 else f"all {count} ranks"


def signal_name(value: object) -> str:
    """``SIGKILL``, from 9, "KILL" or "SIGKILL"."""
    import signal

    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return signal.Signals(value).name
        except ValueError:
            return f"signal {value}"
    word = str(value)
    return word if word.startswith("SIG") else f"SIG{word}"
