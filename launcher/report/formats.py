"""Numbers, times and lists as people read them. Pure."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any


def duration(seconds: float | None) -> str:
    """``64 s``, ``12 min``, ``5 h 52 min``, ``3 d 4 h``; empty for None."""
    if seconds is None or not math.isfinite(seconds):
        return ""
    s = max(0.0, seconds)
    if s < 0.0995:
        return f"{s * 1000:.0f} ms"
    if s < 9.95:
        return f"{s:.1f} s"
    if s < 119.5:
        return f"{s:.0f} s"
    minutes = round(s / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(s / 3600), 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def step_time(seconds: float | None) -> str:
    """``432 ms``, ``1.28 s``: three digits, as step times are compared."""
    if seconds is None or not math.isfinite(seconds):
        return ""
    return (
        f"{seconds * 1000:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s" if seconds < 100 else duration(seconds)
    )


def ago(seconds: float | None) -> str:
    """``64 s ago``; ``now`` for less than a second."""
    if seconds is None:
        return ""
    return "now" if seconds < 1 else f"{duration(seconds)} ago"


def time_of_day(t: float | None, now: float | None = None) -> str:
    """Local time of day; with the date when that is not the day of ``now``."""
    if t is None:
        return ""
    here = time.localtime(t)
    today = time.localtime(now if now is not None else time.time())
    same_day = (here.tm_year, here.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M" if same_day else "%m-%d %H:%M", here)


def count(n: float | None) -> str:
    """``41,250``; empty for None."""
    return "" if n is None else f"{n:,.0f}"


def number(x: object) -> str:
    """A metric in four significant digits; anything but a finite number as written, as far as there is room."""
    if not isinstance(x, int | float) or not abs(x) <= sys.float_info.max:  # a whole number may be beyond all floats
        return "" if x is None else clean(x, 30)
    if x == int(x) and abs(x) < 1e6:
        return str(int(x))
    return f"{x:.4g}"


def metric_list(metrics: Mapping[str, Any], most: int | None = 4) -> str:
    """``loss 1.234, accuracy 0.91``: the first ``most``, or all."""
    return ", ".join(f"{clean(name, 30)} {number(value)}" for name, value in list(metrics.items())[:most])


def hours(n: float) -> str:
    """Hours that somebody pays for: ``3.26``, ``4,560``; empty for 0."""
    return f"{n:,.0f}" if n >= 100 else f"{n:.3g}" if n else ""


def rate(per_second: float | None) -> str:
    """``1,512/s``, ``2.31/s``, ``14.2/min`` or ``5.1/h``."""
    if not per_second or not math.isfinite(per_second):
        return ""
    if per_second >= 0.5:
        return f"{per_second:,.0f}/s" if per_second >= 100 else f"{per_second:.3g}/s"
    return f"{per_second * 60:.3g}/min" if per_second >= 0.5 / 60 else f"{per_second * 3600:.3g}/h"


def percent(part: float, whole: float) -> str:
    """``46 %``; ``<1 %`` rather than 0 for something, ``99 %`` rather than 100 for not all."""
    if whole <= 0:
        return "0 %"
    share = 100 * part / whole
    if 0 < share < 0.5:
        return "<1 %"
    return f"{min(round(share), 99) if share < 100 else 100} %"


def median(values: Iterable[float]) -> float:
    """The middle value; 0 of none. `statistics` takes 30 ms to import, a tenth of what a verb may take."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def clean(text: object, limit: int = 500) -> str:
    """``text`` on one line without control characters (a log may hold terminal escapes), shortened to ``limit``."""
    line = "".join(c if c.isprintable() else " " for c in str(text))
    line = " ".join(line.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def plain_json(value: Any) -> Any:
    """``value`` with non-finite numbers as the strings ``nan``, ``inf``, ``-inf``: JSON has no such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {k: plain_json(v) for k, v in value.items()}
    return [plain_json(v) for v in value] if isinstance(value, (list, tuple)) else value


def json_lines(values: Iterable[dict[str, Any]]) -> str:
    """A JSON list, one object a line, as `plain_json`: json's own indentation takes four times as long."""
    return "[" + ",".join(f"\n {json_line(value)}" for value in values) + "\n]"


def json_line(value: dict[str, Any]) -> str:
    """One object in one line, as `plain_json`."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(plain_json(value))


def wrapped(line: str, width: int, indent: int = 11) -> str:
    """``line`` broken at spaces into lines of ``width``; those after the first are indented."""
    import textwrap

    text = line.lstrip()
    lead = line.removesuffix(text)
    return textwrap.fill(text, width, initial_indent=lead, subsequent_indent=" " * indent, break_long_words=False,
                         break_on_hyphens=False)  # fmt: skip


def clean_line(line: str) -> str:
    """A log's line as a terminal can show it without being steered: escapes gone, a progress bar's last state."""
    line = re.sub(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-_])", "", line)
    line = line.rstrip("\r").rpartition("\r")[2].expandtabs(4)
    return "".join(c if c.isprintable() else "·" for c in line)
