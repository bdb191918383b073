"""The live view's screens as lines of styled text that fit a terminal of a given size. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Any

from rich.cells import chop_cells
from rich.text import Text

from launcher.report import formats
from launcher.report.live.feed import Detail
from launcher.report.live.sparks import bar, spark
from launcher.report.model.history import as_number, own_time
from launcher.report.model.ledger import advice_in_words, advise, cost_in_words, goodput_in_words
from launcher.report.model.troubles import troubles
from launcher.report.text.listing import ListingRow, main_metric_name, sweep_line
from launcher.report.text.status import colour, headline, labelled
from launcher.report.text.words import QUIET, level, words
from launcher.run.units import size

_LEVELS = {"bad": "red", "warning": "yellow", "good": "green", "plain": ""}
_ASCII = str.maketrans("▁▂▃▄▅▆▇█▏▎▍▌▋▊▉─▶▲↑↓←…·–", "_.,-=+*#   ####->^^v<~.-")
_LABEL = 9
_ALWAYS = ("reason", "trouble", "next", "waiting", "phase", "saved", "limit", "files", "goodput")
_WITH_ROOM = ("cost", "advice")
_LEAST_RANKS, _LEAST_EVENTS = 8, 3
"""Ranks and events get this many lines before what is shown only with room."""
_COLUMNS = {
    "HOST": 12, "RANK": 5, "BEAT": 7, "STEP": 9, "STEP TIME": 10, "GPU": 6, "GPU MEM": 8, "GPU PWR": 8, "CPU": 7, "MEM": 8, "FAILS": 6,
}  # fmt: skip
_DISPENSABLE = ("GPU PWR", "MEM", "GPU MEM", "CPU", "STEP TIME", "GPU", "FAILS", "STEP", "BEAT")
"""Left out in this order where the terminal is too narrow."""


def in_ascii(rows: Sequence[Text]) -> list[Text]:
    """Return the lines for terminals without block characters. Widths and colours stay."""
    for row in rows:
        row.plain = row.plain.translate(_ASCII)
    return list(rows)


def _screen(rows: list[Text], keys: str, width: int, height: int) -> list[Text]:
    """Return exactly ``height`` lines of at most ``width`` columns, the keys last."""
    body = rows[: height - 1]
    out = [*body, *[Text("")] * (height - 1 - len(body)), Text(keys.ljust(width), style="reverse")]
    for line in out:
        line.truncate(width, overflow="ellipsis")
    return out


def _window(count: int, chosen: int, room: int) -> range:
    """Return which of ``count`` lines are shown in ``room``: those around the chosen one."""
    first = max(0, min(chosen - room // 2, count - room))
    return range(first, min(first + room, count))


def _marked(chosen: bool) -> Text:
    return Text("▶ ", style="bold") if chosen else Text("  ")


def _fit(name: str, width: int) -> str:
    """Return ``name`` in ``width`` characters: of a long one the beginning and the end, which tells more."""
    if len(name) <= width:
        return name.ljust(width)
    tail = min(12, width // 2)
    return f"{name[: width - tail - 1]}…{name[-tail:]}"


def sorted_groups(groups: Sequence[list[ListingRow]]) -> list[list[ListingRow]]:
    """Sort running runs first, then pending ones, then those that have ended; newest first."""
    order = {"running": 0, "pending": 1}
    return sorted(groups, key=lambda g: min(order.get(row.state, 2) for row in g))


def overview_screen(
    groups: Sequence[list[ListingRow]],
    chosen: int,
    width: int,
    height: int,
    now: float,
    note: str = "",
    hidden: int = 0,
    *,
    sweep: str | None = None,
) -> list[Text]:
    """Show all runs, or the points of ``sweep``, one line each. ``chosen`` is marked; ``hidden`` older ones are left out."""
    states = Counter(row.state for group in groups for row in group)
    ended = states.total() - states["running"] - states["pending"]
    title = Text(f"{sweep}: " if sweep else "", style="bold").append(
        f"{states['running']} running, {states['pending']} pending, {ended} ended"
        + (f", {hidden} older not shown" if hidden else "")
    )
    title.append(formats.time_of_day(now).rjust(max(1, width - len(title))), style="dim")
    wide = width >= 100
    name_width = max(8, width - (60 if wide else 47))
    head = f"  {'RUN':<{name_width}}  STATE      {'PROGRESS      ' if wide else ' '}        SPEED      LOSS  LEFT"
    body = [
        _overview_line(groups[i], i == chosen, name_width, wide, points=sweep is not None)
        for i in _window(len(groups), chosen, height - 3)
    ]
    body = body or [Text("  no runs yet; launcher submit job.yaml starts one", style="dim")]
    keys = note or "↑↓ choose   enter open   c save and cancel   q quit"
    return _screen([title, Text(head, style="dim"), *body], keys, width, height)


def _overview_line(group: list[ListingRow], chosen: bool, name_width: int, wide: bool, *, points: bool) -> Text:
    row, line = group[0], _marked(chosen)
    if row.sweep is not None and not points:
        state, counts = sweep_line(group)
        line.append(_fit(f"{row.sweep} (sweep)", name_width)).append(f"  {state:<9}", style=colour(state))
        return line.append(f"  {counts}")
    line.append(_fit(" ".join(formats.clean(o, 40) for o in row.overrides) if points else row.run, name_width))
    line.append(f"  {row.state:<9}", style=colour(row.state))
    share = row.step / row.total_steps if row.step is not None and row.total_steps else None
    if wide:
        line.append(f"  {bar(share, 10) if share is not None else '':<10}  ")
    done = formats.percent(row.step or 0, row.total_steps or 0) if share is not None else formats.count(row.step)
    line.append(f"{done:>7}")
    if row.state in ("failed", "cancelled"):
        return line.append(f"  {formats.clean(row.reason, 120)}", style="dim")
    running, loss = row.state == "running", main_metric_name(row.metrics)
    line.append(f"{formats.rate(row.rate) if running else '':>8}")
    line.append(f"{formats.number(row.metrics[loss]) if 'loss' in loss else '':>10}")
    left = formats.duration(row.eta_s) if running else ""
    return line.append(f"  {left if running or row.state == 'completed' else formats.clean(row.reason, 40)}")


def detail_screen(d: Detail, chosen: int, width: int, height: int, note: str = "") -> list[Text]:
    """Show one run: progress, curves, ranks and its last events. ``chosen`` is the marked rank's place in the table."""
    s = d.summary
    head = Text(headline(s), style="bold")
    head.highlight_words([s.state], style=colour(s.state))
    rows = [head, *_progress(d, width), *_curves(d, width)]
    least = _LEAST_EVENTS + (min(len(s.ranks), _LEAST_RANKS) + 1 if s.ranks else 0)
    rows += [*_facts(d, width, height - len(rows) - 3 - least), Text("")]
    events = [e for e in d.history.events if not isinstance(e, QUIET)]
    room = height - len(rows) - 2
    for_events = min(len(events), max(_LEAST_EVENTS, room - len(s.ranks) - 1) if s.ranks else room)
    if s.ranks:
        rows += _ranks(d, min(max(chosen, 0), len(s.ranks) - 1), width, max(1, room - for_events - 1))
    for e in events[-for_events:] if for_events > 0 else []:
        rows.append(Text(f"{formats.time_of_day(e.t, d.now)}  ", style="dim").append(words(e), style=_LEVELS[level(e)]))
    return _screen(rows, note or "↑↓ rank   l log   c save and cancel   ← all runs   q quit", width, height)


def _facts(d: Detail, width: int, room: int) -> list[Text]:
    """Return lines of ``status``: those that are always shown, and in what is left of ``room`` some more."""
    goodput, cost = goodput_in_words(d.book), cost_in_words(d.book)
    if len(joined := "  ".join(filter(None, [goodput, cost]))) <= width - _LABEL:
        goodput, cost = joined, ""
    wrong = troubles(d.history, d.summary, d.now)
    advice = advice_in_words(advise(d.history, d.book))
    values = labelled(d.summary, d.now, wrong=wrong, goodput=goodput, cost=cost, advice=advice)
    parts = {label: [values[label]] for label in _ALWAYS if label in values}
    for label in ("trouble", "next", "reason"):
        if sum(map(len, parts.values())) < room and label in parts:
            parts[label] = wrap(values[label], width - _LABEL, max_lines=2, placeholder=" …")
    for label in _WITH_ROOM:
        if label in values and sum(map(len, parts.values())) < room:
            parts[label] = [values[label]]
    return [
        Text(f"{'' if i else label:<{_LABEL}}{part}", style="yellow" if label == "trouble" else "")
        for label, p in parts.items()
        for i, part in enumerate(p)
    ]


def _progress(d: Detail, width: int) -> list[Text]:
    s = d.summary
    if s.step is None:
        return []
    line = Text(f"{'step':<{_LABEL}}{formats.count(s.step)}")
    left = f"  done in {formats.duration(s.eta_s)}" if s.state == "running" and s.eta_s is not None else "  "
    if not s.total_steps:
        return [line.append(left)]
    share = formats.percent(s.step, s.total_steps)
    line.append(f" of {formats.count(s.total_steps)}  ")
    room = width - len(line) - len(share) - len(left) - 2
    if room >= 6:
        line.append(bar(s.step / s.total_steps, min(room, 60)), style=colour(s.state))
    return [line.append(f"  {share}{left}")]


def _curves(d: Detail, width: int) -> list[Text]:
    def newest(values: list[float | None]) -> float | None:
        return next((v for v in reversed(values) if v is not None), None)

    loss, speed = formats.number(newest(d.losses)), formats.rate(d.summary.rate or newest(d.speeds))
    return [
        Text(f"{label[:8]:<{_LABEL}}").append(drawn, style="cyan").append(f"  {value}")
        for label, values, value in ((d.loss_name, d.losses, loss), ("speed", d.speeds, speed))
        if (drawn := spark(values, max(10, width - _LABEL - 14)))
    ]


def _ranks(d: Detail, chosen: int, width: int, room: int) -> list[Text]:
    """Return the table of ranks: as many as fit, around the chosen one."""
    ranks = d.summary.ranks
    gpus = any(as_number(r.get("gpu_mem_bytes")) for r in ranks)
    columns = {name: w for name, w in _COLUMNS.items() if gpus or not name.startswith("GPU")}
    for name in _DISPENSABLE:
        if 2 + sum(columns.values()) > width:
            columns.pop(name, None)
    shown = _window(len(ranks), chosen, room)
    hidden = len(ranks) - len(shown)
    more = f"  ({hidden} more)" if hidden else ""
    narrow = more and 2 + sum(columns.values()) + len(more) > width
    names = {name: name.rjust(w) for name, w in columns.items()}
    names["HOST"] = f"{f'HOST (+{hidden})' if narrow else 'HOST':<12}"
    rows = [Text(f"  {''.join(names.values())}{'' if narrow else more}", style="dim")]
    for i in shown:
        (cells, styles), line = _cells(ranks[i], d), _marked(i == chosen)
        for name, w in columns.items():
            cell = _fit(cells[name], w) if name == "HOST" else cells[name].rjust(w)
            line.append(cell, style=styles.get(name, ""))
        rows.append(line)
    return rows


def _cells(r: dict[str, Any], d: Detail) -> tuple[dict[str, str], dict[str, str]]:
    """Return the texts of one rank's cells by column, and the styles of those that have one."""
    beat = as_number(r.get("heartbeat_t"))
    silent = max(0.0, d.now - beat) if beat is not None and d.summary.active else None
    late = "" if silent is None or silent < 5 else "yellow" if silent < 10 else "red"
    fails = d.failures.get(r["rank"], 0) if isinstance(r.get("rank"), int) else 0
    slowest = d.summary.slowest is not None and d.summary.slowest[0] == r.get("rank")

    def share(key: str) -> str:
        value = as_number(r.get(key))
        return "" if value is None else f"{value:.0f} %"

    return {
        "HOST": formats.clean(r.get("host") or "", 40),
        "RANK": str(r.get("rank", "")),
        "BEAT": " ".join(formats.duration(silent).split()[:2]),
        "STEP": formats.count(as_number(r.get("step"))),
        "STEP TIME": "▲ " * slowest + formats.step_time(own_time(r)),
        "GPU": share("gpu_percent"),
        "GPU MEM": size(as_number(r.get("gpu_mem_bytes"))),
        "GPU PWR": "" if (watts := as_number(r.get("gpu_power_w"))) is None else f"{watts:.0f} W",
        "CPU": share("cpu_percent"),
        "MEM": size(as_number(r.get("rss_bytes"))),
        "FAILS": str(fails or ""),
    }, {"BEAT": late, "STEP TIME": "yellow" if slowest else "", "FAILS": "red" if fails else ""}


def folded(log: Iterable[str], width: int) -> list[str]:
    """Return the lines as a terminal can show them. Long ones go on below: the end of an error tells as much as its beginning."""
    return [part for line in log for part in chop_cells(formats.clean_line(line), width) or [""]]


def log_screen(title: str, log: Sequence[str], back: int, width: int, height: int, note: str = "") -> list[Text]:
    """Show the end of a log of `folded` lines, or the lines that end ``back`` lines above it."""
    room = height - 2
    end = max(min(room, len(log)), len(log) - back)
    body = [Text(line) for line in log[max(0, end - room) : end]] or [Text("nothing written yet", style="dim")]
    keys = note or "↑↓ rank   pgup pgdn scroll   ← back   q quit"
    return _screen([Text(_fit(title, width), style="bold"), *body], keys, width, height)
