"""One self-contained HTML page about a run, or several compared: nothing is loaded from anywhere, all text is escaped."""

from __future__ import annotations

import difflib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.report import formats
from launcher.report.diagnosis.why import Why, explain
from launcher.report.model.history import History, as_dict, as_list, as_number, as_text, in_order
from launcher.report.model.ledger import Advice, Ledger, advise, ledger, shares
from launcher.report.model.problems import in_words as fault_in_words
from launcher.report.model.series import MAX_POINTS, RankSpread, Series, charts, metric_series, spreads, usage
from launcher.report.model.summary import RunSummary
from launcher.report.page.drawing import bands, lanes
from launcher.report.text.status import past, said_nothing
from launcher.report.text.words import level, words
from launcher.run.files import Damage, read_object, read_thinned
from launcher.run.paths import RunPaths
from launcher.run.redact import redact

__all__ = ["Told", "changes", "compare_page", "mean_speed", "read_told", "run_page"]

_TEMPLATES = Path(__file__).parent / "templates"
MOST_EVENTS = 400
MOST_RANKS = 32
_TITLES = {
    "throughput": ("Throughput", "steps/s"), "gpu": ("GPU use", "%"), "cpu": ("CPU use of a rank", "%"),
    "gpu_memory": ("GPU memory", "GB"), "memory": ("Memory of a rank", "GB"),
}  # fmt: skip


@dataclass
class Told:
    """Everything a page says about one run."""

    summary: RunSummary
    history: History
    book: Ledger
    advice: Advice
    why: Why
    metrics: list[Series] = field(default_factory=list)
    usage: dict[str, list[Series]] = field(default_factory=dict)
    spread: list[RankSpread] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    job: str = ""
    faults: list[str] = field(default_factory=list)
    """What of the run's files could not be read."""

    @property
    def short(self) -> str:
        """The run's short name."""
        return self.summary.run.rsplit("-", 1)[-1]


def read_told(h: History, s: RunSummary, now: float) -> Told:
    """Read what else a page needs of a run: metrics, samples, environment and job."""
    book = ledger(h, s.ended or now)
    damage: list[Damage] = []
    metrics = read_thinned(h.paths.metrics, damage)
    samples = in_order(
        [s for s in read_thinned(h.paths.samples, damage, most_lines=MAX_POINTS) if as_number(s.get("t")) is not None]
    )
    environment = read_object(h.paths.environment, damage) or {}
    more = [sentence for d in damage if (sentence := fault_in_words(d, active=s.active))]
    return Told(
        summary=s, history=h, book=book, advice=advise(h, book), why=explain(h, s, now),
        metrics=[m.thin() for m in metric_series(metrics)], usage=usage(samples), spread=spreads(samples),
        environment=environment, job=_job(h.paths), faults=[*s.file_faults, *more],
    )  # fmt: skip


def _job(paths: RunPaths) -> str:
    """The job's YAML, without what looks like a secret."""
    try:
        return redact(paths.job.read_text(errors="replace")[:200_000])
    except OSError:
        return ""


def run_page(told: Told, previous: tuple[str, str] | None, now: float) -> str:
    """The page of one run; ``previous``: name and job YAML of the run before it of the same name."""
    return _render("run.html", told=told, now=now, **_parts(told, now), diff=changes(previous, told), previous=previous)


def _parts(told: Told, now: float) -> dict[str, Any]:
    s, book = told.summary, told.book
    return {
        "title": f"{s.run}: {s.state}",
        "lead": _lead(told, now),
        "tiles": _tiles(told, now),
        "bands": bands(book),
        "lanes": lanes(book.segments, told.history),
        "past": past(book, now, limit=8),
        "advice": _advice(told),
        "charts": _charts(told),
        "spread": _shown(told.spread),
        "hidden_ranks": max(0, len(told.spread) - MOST_RANKS),
        "events": _events(told.history, now),
        "facts": _facts(told, now),
        "packages": sorted(as_dict(told.environment.get("packages")).items()),
        "patch": as_text(as_dict(told.environment.get("code")).get("diff")),
    }


def _lead(told: Told, now: float) -> str:
    """The sentence below the title: what matters now, or how it ended."""
    s = told.summary
    if not s.active:
        return told.why.sentence
    if s.silent and s.heard is not None:
        return f"The leader has written {said_nothing(s, now)}; it may be dead or the file system slow."
    if s.state == "pending":
        return f"The run waits in the queue{f' ({formats.clean(s.reason, 60)})' if s.reason else ''}."
    if s.missing:
        return f"The run waits for {formats.short_list([as_text(m.get('host')) for m in s.missing])}."
    speed = f" at {formats.rate(s.rate)}" if s.rate else ""
    left = f", done in {formats.duration(s.eta_s)}" if s.eta_s is not None else ""
    return f"The run is {s.phase or 'running'}{speed}{left}."


def _tiles(told: Told, now: float) -> list[tuple[str, str, str]]:
    """(label, figure, what stands below it)."""
    s, book = told.summary, told.book
    tiles: list[tuple[str, str, str]] = []
    if s.step is not None:
        below = f"of {formats.count(s.total_steps)}" if s.total_steps else ""
        tiles.append(("step", formats.count(s.step), below))
    tiles += [(formats.clean(name, 24), formats.number(value), "newest") for name, value in list(s.metrics.items())[:2]]
    if s.state == "running" and s.rate:
        tiles.append(
            ("speed", formats.rate(s.rate), f"done in {formats.duration(s.eta_s)}" if s.eta_s is not None else "")
        )
    elif (speed := mean_speed(told)) is not None:
        tiles.append(("speed", formats.rate(speed), "mean while training"))
    if book.goodput is not None and s.started is not None:
        tiles.append(("goodput", formats.percent(book.goodput, 1), f"of {formats.duration(book.total_s)}"))
    if book.gpu_hours:
        spare = f"{formats.hours(book.spare_gpu_hours)} of them spare" if book.spare_gpu_hours else ""
        tiles.append(("GPU-hours", formats.hours(book.gpu_hours), spare))
    elif book.cpu_hours:
        tiles.append(("CPU-hours", formats.hours(book.cpu_hours), ""))
    tiles.append(
        ("interruptions", str(len(book.interruptions)), f"{formats.plural(book.lost_steps, 'step')} done again")
    )
    return tiles


def mean_speed(told: Told) -> float | None:
    """Steps per second of useful time."""
    useful = told.book.seconds["useful"]
    return told.summary.step / useful if told.summary.step and useful > 0 else None


def _advice(told: Told) -> list[str]:
    """Sentences about saving, from what was measured."""
    a, out = told.advice, []
    if a.save_cost_s is not None:
        out.append(f"A checkpoint holds training up for {formats.duration(a.save_cost_s)} (median).")
    if a.interval_s is not None:
        seen = (
            f"an interruption per {formats.duration(a.mttf_s)}"
            if a.failures
            else f"no failure in {formats.duration(a.mttf_s)}"
        )
        out.append(f"Best time between checkpoints, given {seen}: {formats.duration(a.interval_s)} (Young/Daly).")
    if a.lead_s is not None:
        out.append(
            f"To save before a time limit, {formats.duration(a.lead_s)} of warning are enough (restart.signal_lead_s)."
        )
    return out


def _charts(told: Told) -> list[dict[str, Any]]:
    """Charts as the page's script draws them."""
    out = []
    for group in charts(told.metrics):
        broken = sum(s.broken for s in group)
        note = f"{formats.plural(broken, 'value')} not finite" if broken else ""
        out.append(
            {"title": group[0].name, "unit": "", "x": "step", "note": note, "series": [s.as_json() for s in group]}
        )
    for name, group in told.usage.items():
        title, unit = _TITLES[name]
        out.append({"title": title, "unit": unit, "x": "time", "note": "", "series": [s.as_json() for s in group]})
    return out


def _shown(spread: list[RankSpread]) -> list[dict[str, Any]]:
    """Ranks to draw: all, or the slowest; positions in per cent of the widest."""
    shown = spread if len(spread) <= MOST_RANKS else sorted(spread, key=lambda s: -s.over)[:MOST_RANKS]
    top = max((s.high for s in shown), default=0.0)
    if top <= 0:
        return []
    return [
        {
            "rank": s.rank, "host": s.host, "left": 100 * s.low / top, "width": 100 * (s.high - s.low) / top,
            "middle": 100 * s.middle / top, "words": formats.step_time(s.middle), "over": f"{s.over:+.0%}".replace("%", " %"),
            "straggler": s.straggler, "range": f"{formats.step_time(s.low)} to {formats.step_time(s.high)}",
        }
        for s in sorted(shown, key=lambda s: s.rank)
    ]  # fmt: skip


def _events(h: History, now: float) -> list[dict[str, str]]:
    hidden = {"progress_assumed", "digest", "save_started", "notified"}
    told = [e for e in h.events if e["type"] not in hidden]
    return [
        {"when": formats.clock(e["t"], now), "level": level(e), "words": words(e), "place": _place(e)}
        for e in told[-MOST_EVENTS:]
    ]


def _place(e: dict[str, Any]) -> str:
    attempt, round_ = e.get("attempt"), e.get("round")
    return "" if attempt is None else f"{attempt}" if round_ is None else f"{attempt}.{round_}"


def _facts(told: Told, now: float) -> list[tuple[str, str]]:
    """Labelled facts: where, when, with what."""
    s, env = told.summary, told.environment
    code, python = as_dict(env.get("code")), as_dict(env.get("python"))
    rows = [
        ("run", s.dir),
        ("job", f"{s.job_id}, {s.backend}" if s.job_id else s.backend),
        ("submitted", _moment(s.submitted)),
        ("started", _moment(s.started)),
        ("ended", _moment(s.ended)),
        ("nodes", formats.short_list(s.nodes, 8)),
        ("ranks", str(s.world_size or "")),
        ("saved", f"step {formats.count(s.saved_step)}" if s.saved_step is not None else ""),
        ("command", " ".join(str(a) for a in as_list(env.get("command")))),
        ("submitted from", f"{as_text(env.get('user'))}@{as_text(env.get('host'))}".strip("@")),
        ("system", as_text(env.get("system"))),
        ("python", f"{as_text(python.get('version'))} {as_text(python.get('path'))}".strip()),
        ("commit", as_text(code.get("commit")) + (" with changes" if code.get("dirty") else "")),
    ]
    return [(label, value) for label, value in rows if value]


def _moment(t: float | None) -> str:
    return "" if t is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t))


def changes(previous: tuple[str, str] | None, told: Told) -> list[tuple[str, str]]:
    """(kind, line) of the job's changes since the run before; empty without one or without changes."""
    if previous is None:
        return []
    return _unified(previous[0], previous[1], told.summary.run, told.job)


def _unified(old_name: str, old: str, new_name: str, new: str) -> list[tuple[str, str]]:
    kinds = {"+": "add", "-": "del", "@": "hunk"}
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), old_name, new_name, n=2, lineterm="")
    return [(kinds.get(line[:1], ""), line) for line in lines]


def compare_page(all_told: list[Told], now: float) -> str:
    """One page about several runs: figures side by side, curves over each other, what differs."""
    first = all_told[0]
    diffs = [
        (other.summary.run, _unified(first.summary.run, first.job, other.summary.run, other.job))
        for other in all_told[1:]
    ]
    return _render(
        "compare.html", title="Compared: " + ", ".join(t.short for t in all_told), runs=all_told, table=_table(all_told, now),
        charts=_joint_charts(all_told), diffs=diffs, packages=_package_diff(all_told), now=now,
    )  # fmt: skip


def _table(all_told: list[Told], now: float) -> list[tuple[str, list[str]]]:
    def row(label: str, values: list[str]) -> list[tuple[str, list[str]]]:
        return [(label, values)] if any(values) else []

    names = list(dict.fromkeys(name for t in all_told for name in t.summary.metrics))
    rows = row("state", [t.summary.state for t in all_told])
    rows += row("step", [formats.count(t.summary.step) for t in all_told])
    for name in names[:12]:
        rows += row(formats.clean(name, 30), [formats.number(t.summary.metrics.get(name)) for t in all_told])
    rows += row("speed while training", [formats.rate(mean_speed(t)) for t in all_told])
    rows += row("ranks", [str(t.summary.world_size or "") for t in all_told])
    rows += row("time in all", [formats.duration(t.book.total_s) for t in all_told])
    for kind in ("useful", "saving", "lost", "recovery", "start-up", "queued", "stopped"):
        parts = [shares(t.book).get(kind, 0) for t in all_told]
        rows += row(kind, [f"{part} %" for part in parts]) if any(parts) else []
    rows += row("GPU-hours", [formats.hours(t.book.gpu_hours) if t.book.gpu_hours else "" for t in all_told])
    rows += row("interruptions", [str(len(t.book.interruptions)) for t in all_told])
    rows += row("steps done again", [formats.count(t.book.lost_steps) for t in all_told])
    return rows


def _joint_charts(all_told: list[Told]) -> list[dict[str, Any]]:
    """One chart per metric, a line per run."""
    names = list(dict.fromkeys(m.name for t in all_told for m in t.metrics))
    out = []
    for name in names:
        lines = [(t, m) for t in all_told for m in t.metrics if m.name == name]
        series = [{**m.as_json(), "name": t.short} for t, m in lines]
        out.append({"title": name, "unit": "", "x": "step", "note": "", "series": series})
    return out


def _package_diff(all_told: list[Told]) -> list[tuple[str, list[str]]]:
    tables = [as_dict(t.environment.get("packages")) for t in all_told]
    names = sorted({n for t in tables for n in t})
    rows = [(n, [as_text(t.get(n), "-") for t in tables]) for n in names]
    return [(n, versions) for n, versions in rows if len(set(versions)) > 1]


def _render(template: str, **values: Any) -> str:
    import jinja2

    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    assets = {
        "style": (_TEMPLATES / "vendor" / "uPlot.min.css").read_text(encoding="utf-8")
        + (_TEMPLATES / "style.css").read_text(encoding="utf-8"),
        "script": (_TEMPLATES / "vendor" / "uPlot.iife.min.js").read_text(encoding="utf-8")
        + "\n"
        + (_TEMPLATES / "charts.js").read_text(encoding="utf-8"),
    }
    page: str = env.get_template(template).render(
        **values, data=script_json(values["charts"]), made=_moment(values["now"]), **assets
    )
    return page


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element: nothing in it can end the element."""
    raw = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character, escape in (
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("&", "\\u0026"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
    ):
        raw = raw.replace(character, escape)
    return raw
