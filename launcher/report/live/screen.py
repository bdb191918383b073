"""The live view's screens as lines of styled text that fit a terminal of a given size; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Any

from rich.cells import chop_cells
from rich.text import Text

from launcher.report import formats
from launcher.report.live.feed import Detail
from launcher.report.live.sparks import bar, spark
from launcher.report.model.history import as_number, own_time
from launcher.report.model.ledger import advice_in_words, cost_in_words, in_words
from launcher.report.text.listing import Row, sweep_line
from launcher.report.text.status import colour, headline, lines
from launcher.report.text.words import level, words
from launcher.run.units import size

__all__ = ["detail_screen", "folded", "in_ascii", "log_screen", "overview_screen", "sorted_groups"]

_LEVELS = {"bad": "red", "warning": "yellow", "good": "green", "plain": ""}
_ASCII = str.maketrans("▁▂▃▄▅▆▇█▏▎▍▌▋▊▉─▶▲↑↓←…·–", "_.,-=+*#   ####->^^v<~.-")
_QUIET = frozenset({"save_started", "progress_assumed", "digest", "notified"})
_LABEL = 9
_TOLD = ("reason", "heard", "waiting", "phase", "ended", "saved", "saving", "limit", "files", "goodput")
_WITH_ROOM = ("cost", "advice")
_LEAST_RANKS, _LEAST_EVENTS = 8, 3
"""Lines that these have before what may be left out."""


def _fit(name: str, width: int) -> str:
    """``name`` in ``width`` characters; of a long one the beginning and the telling end."""
    if len(name) <= width:
        return name.ljust(width)
    tail = min(12, width // 2)
    return f"{name[: width - tail - 1]}…{name[-tail:]}"


def in_ascii(rows: Sequence[Text]) -> list[Text]:
    """The same lines for terminals without block characters; widths and colours stay."""
    for row in rows:
        row.plain = row.plain.translate(_ASCII)
    return list(rows)


def _footer(words_: str, width: int) -> Text:
    return Text(words_[:width].ljust(width), style="reverse")


def _fill(rows: list[Text], height: int, footer: Text) -> list[Text]:
    """Exactly ``height`` lines, the footer last."""
    body = rows[: height - 1]
    return [*body, *[Text("")] * (height - 1 - len(body)), footer]


def sorted_groups(groups: Sequence[list[Row]]) -> list[list[Row]]:
    """Runs that are not over first, newest first."""
    order = {"running": 0, "pending": 1}
    return sorted(groups, key=lambda g: min(order.get(row.state, 2) for row in g))


def overview_screen(
    groups: Sequence[list[Row]],
    chosen: int,
    width: int,
    height: int,
    now: float,
    note: str = "",
    hidden: int = 0,
    *,
    sweep: str | None = None,
) -> list[Text]:
    """All runs, or the points of ``sweep``, one line each; ``chosen`` is marked; ``hidden`` older ones are left out."""
    counts = [sum(row.state == state for g in groups for row in g) for state in ("running", "pending")]
    total = sum(len(g) for g in groups)
    of = f"{sweep}: " if sweep else ""
    older = f", {hidden} older not shown" if hidden else ""
    title = Text(f"{of}{counts[0]} running, {counts[1]} pending, {total - sum(counts)} ended{older}", style="bold")
    title.append(formats.clock(now).rjust(max(1, width - len(title.plain))), style="dim")
    wide = width >= 100
    name_width = width - (60 if wide else 47)
    head = (
        "  "
        + "RUN".ljust(name_width)
        + "  STATE      "
        + ("PROGRESS      " if wide else " ")
        + "        SPEED      LOSS  LEFT"
    )
    room = height - 3
    first = max(0, min(chosen - room // 2, len(groups) - room))
    body = [
        _overview_line(g, first + i == chosen, name_width, wide, points=sweep is not None)
        for i, g in enumerate(groups[first : first + room])
    ]
    if not groups:
        body = [Text("  no runs yet; launcher submit job.yaml starts one", style="dim")]
    for line in body:
        line.truncate(width)
    keys = note or "↑↓ choose   enter open   c cancel with save   q quit"
    return _fill([title, Text(head[:width], style="dim"), *body], height, _footer(keys, width))


def _overview_line(group: list[Row], chosen: bool, name_width: int, wide: bool, *, points: bool) -> Text:
    row = group[0]
    line = Text("▶ " if chosen else "  ", style="bold" if chosen else "")
    if row.sweep is not None and not points:
        state, said = sweep_line(group)
        line.append(_fit(f"{row.sweep} (sweep)", name_width))
        line.append(f"  {state:<9}", style=colour(state))
        return line.append(f"  {said}")
    line.append(_fit(" ".join(formats.clean(o, 40) for o in row.overrides) if points else row.run, name_width))
    line.append(f"  {row.state:<9}", style=colour(row.state))
    share = row.step / row.total_steps if row.step is not None and row.total_steps else None
    if wide:
        line.append("  " + (bar(share, 10) if share is not None else " " * 10) + "  ")
    done = formats.percent(row.step or 0, row.total_steps or 0) if share is not None else formats.count(row.step)
    line.append(done.rjust(7))
    if row.state in ("failed", "cancelled"):
        return line.append(f"  {formats.clean(row.reason, 120)}", style="dim")
    line.append((formats.rate(row.rate) if row.state == "running" else "").rjust(8))
    line.append(_loss(row.metrics).rjust(10))
    left = formats.duration(row.eta_s) if row.eta_s is not None and row.state == "running" else ""
    return line.append(
        f"  {left}" if left or row.state in ("running", "completed") else f"  {formats.clean(row.reason, 40)}"
    )


def _loss(metrics: dict[str, Any]) -> str:
    name = next((n for n in metrics if n == "loss"), next((n for n in metrics if "loss" in n), None))
    return formats.number(metrics[name]) if name else ""


def detail_screen(d: Detail, chosen: int, width: int, height: int, now: float, note: str = "") -> list[Text]:
    """One run: where it is, its curves, its ranks, its last events. ``chosen`` is the marked rank's place in the table."""
    s = d.summary
    head = Text(headline(s), style="bold")
    head.truncate(width, overflow="ellipsis")
    head.highlight_words([s.state], style=colour(s.state))
    rows = [head, *_progress(d, width), *_curves(d, width)]
    least = _LEAST_EVENTS + (min(len(s.ranks), _LEAST_RANKS) + 1 if s.ranks else 0)
    rows += _told(d, width, height - len(rows) - 3 - least, now)
    events = [e for e in d.history.events if e["type"] not in _QUIET]
    room = height - len(rows) - 3
    for_events = min(len(events), max(_LEAST_EVENTS, room - len(s.ranks) - 1)) if s.ranks else min(len(events), room)
    rows.append(Text(""))
    if s.ranks:
        rows += _ranks(d, chosen, width, max(1, room - for_events - 1), now)
    rows += [_event_line(e, width, now) for e in events[-for_events:]] if for_events > 0 else []
    keys = note or "↑↓ rank   l log   c cancel with save   ← all runs   q quit"
    return _fill(rows, height, _footer(keys, width))


def _told(d: Detail, width: int, room: int, now: float) -> list[Text]:
    """Lines of ``status``, in at most ``room`` where those that may be missing are left out."""
    goodput, cost = in_words(d.book), cost_in_words(d.book)
    if len(joined := "  ".join(filter(None, [goodput, cost]))) <= width - _LABEL:
        goodput, cost = joined, ""
    told = lines(d.summary, now, goodput=goodput, cost=cost, advice=advice_in_words(d.advice))[1:]
    values = {label: value.strip() for label, _, value in (line.strip().partition(" ") for line in told)}
    parts = {label: [values[label]] for label in _TOLD if label in values}
    if len(parts) < room and "reason" in parts:
        parts["reason"] = wrap(values["reason"], width - _LABEL, max_lines=2, placeholder=" …")
    for label in _WITH_ROOM:
        if label in values and sum(map(len, parts.values())) < room:
            parts[label] = [values[label]]
    out = [Text(f"{label if i == 0 else '':<{_LABEL}}{part}") for label, p in parts.items() for i, part in enumerate(p)]
    for line in out:
        line.truncate(width, overflow="ellipsis")
    return out


def _progress(d: Detail, width: int) -> list[Text]:
    s = d.summary
    if s.step is None:
        return []
    of = f" of {formats.count(s.total_steps)}" if s.total_steps else ""
    label = f"{'step':<9}{formats.count(s.step)}{of}"
    left = f"done in {formats.duration(s.eta_s)}" if s.state == "running" and s.eta_s is not None else ""
    if not s.total_steps:
        return [Text(f"{label}  {left}"[:width])]
    share = formats.percent(s.step, s.total_steps)
    room = width - len(label) - len(left) - len(share) - 6
    line = Text(f"{label}  ")
    if room >= 6:
        line.append(bar(s.step / s.total_steps, min(room, 60)), style=colour(s.state))
    line.append(f"  {share}  {left}")
    line.truncate(width)
    return [line]


def _curves(d: Detail, width: int) -> list[Text]:
    out = []
    newest = next((v for v in reversed(d.losses) if v is not None), None)
    speed = d.summary.rate or next((v for v in reversed(d.speeds) if v is not None), None)
    pairs = ((d.loss_name, d.losses, formats.number(newest)), ("speed", d.speeds, formats.rate(speed)))
    for label, values, said in pairs:
        drawn = spark(values, max(10, width - 9 - 14))
        if drawn:
            out.append(Text(f"{label[:8]:<9}").append(drawn, style="cyan").append(f"  {said}"))
    return out


_COLUMNS = (
    ("HOST", 12), ("RANK", 5), ("BEAT", 7), ("STEP", 9), ("STEP TIME", 10), ("GPU", 6), ("GPU MEM", 8), ("CPU", 7),
    ("MEM", 8), ("FAILS", 6),
)  # fmt: skip
_DISPENSABLE = ("MEM", "GPU MEM", "CPU", "STEP TIME", "GPU", "FAILS", "STEP", "BEAT")
"""Left out in this order where the terminal is too narrow."""


def _columns(gpus: bool, width: int) -> list[tuple[str, int]]:
    columns = [c for c in _COLUMNS if gpus or not c[0].startswith("GPU")]
    for name in _DISPENSABLE:
        if 2 + sum(w for _, w in columns) > width:
            columns = [c for c in columns if c[0] != name]
    return columns


def _ranks(d: Detail, chosen: int, width: int, room: int, now: float) -> list[Text]:
    """The table of ranks: as many as fit around the chosen one."""
    ranks = d.summary.ranks
    gpus = any(as_number(r.get("gpu_mem_bytes")) for r in ranks)
    columns = _columns(gpus, width)
    chosen = min(max(chosen, 0), len(ranks) - 1)
    head = Text("  " + "".join(name.ljust(w) if name == "HOST" else name.rjust(w) for name, w in columns), style="dim")
    first = max(0, min(chosen - room // 2, len(ranks) - room))
    shown = ranks[first : first + room]
    rows = []
    for i, r in enumerate(shown):
        cells = _cells(r, d, now)
        line = Text("▶ " if first + i == chosen else "  ", style="bold" if first + i == chosen else "")
        for name, w in columns:
            cell, style = cells[name]
            line.append(_fit(cell, w) if name == "HOST" else cell.rjust(w), style=style)
        line.truncate(width)
        rows.append(line)
    hidden = len(ranks) - len(shown)
    if hidden > 0 and len(head) + len(more := f"  ({hidden} more)") <= width:
        head.append(more)
    elif hidden > 0:
        head.plain = head.plain.replace("HOST".ljust(12), f"HOST (+{hidden})".ljust(12), 1)
    head.truncate(width)
    return [head, *rows]


def _cells(r: dict[str, Any], d: Detail, now: float) -> dict[str, tuple[str, str]]:
    beat = as_number(r.get("heartbeat_t"))
    silent = max(0.0, now - beat) if beat is not None and d.summary.active else None
    late = "" if silent is None or silent < 5 else "yellow" if silent < 10 else "red"
    fails = d.failures.get(r["rank"], 0) if isinstance(r.get("rank"), int) else 0

    slow = d.summary.slowest
    slowest = slow is not None and slow[0] == r.get("rank")

    def share(key: str) -> str:
        value = as_number(r.get(key))
        return "" if value is None else f"{value:.0f} %"

    return {
        "HOST": (formats.clean(r.get("host") or "", 40), ""),
        "RANK": (str(r.get("rank", "")), ""),
        "BEAT": (" ".join(formats.duration(silent).split()[:2]), late),
        "STEP": (formats.count(as_number(r.get("step"))), ""),
        "STEP TIME": ("▲ " * slowest + formats.step_time(own_time(r)), "yellow" if slowest else ""),
        "GPU": (share("gpu_percent"), ""),
        "GPU MEM": (size(as_number(r.get("gpu_mem_bytes"))), ""),
        "CPU": (share("cpu_percent"), ""),
        "MEM": (size(as_number(r.get("rss_bytes"))), ""),
        "FAILS": (str(fails) if fails else "", "red" if fails else ""),
    }


def _event_line(e: dict[str, Any], width: int, now: float) -> Text:
    line = Text(f"{formats.clock(e['t'], now)}  ", style="dim")
    line.append(words(e), style=_LEVELS[level(e)])
    line.truncate(width, overflow="ellipsis")
    return line


def folded(log: Iterable[str], width: int) -> list[str]:
    """The lines as a terminal can show them; long ones go on below, for the end of an error is as telling as its beginning."""
    return [part for line in log for part in chop_cells(formats.clean_line(line), width) or [""]]


def log_screen(title: str, log: Sequence[str], back: int, width: int, height: int, note: str = "") -> list[Text]:
    """The end of a log of `folded` lines, or ``back`` lines above it."""
    room = height - 2
    end = max(min(room, len(log)), len(log) - back)
    body = [Text(line) for line in log[max(0, end - room) : end]]
    if not log:
        body = [Text("nothing written yet", style="dim")]
    keys = note or "↑↓ rank   pgup pgdn scroll   ← back   q quit"
    return _fill([Text(_fit(title, width), style="bold"), *body], height, _footer(keys, width))
