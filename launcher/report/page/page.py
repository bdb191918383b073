"""One self-contained HTML page about a run, or several compared. It loads nothing; all text is escaped."""

from __future__ import annotations

import dataclasses
import difflib
import time
from pathlib import Path
from typing import Any

from launcher.redact import redact_words
from launcher.report import formats
from launcher.report.diagnosis.why import Why, explain
from launcher.report.model.history import History, as_dict, as_list, as_number, as_text, in_order
from launcher.report.model.ledger import COUNTED, Advice, Ledger, advise, ledger, shares
from launcher.report.model.problems import damage_in_words
from launcher.report.model.runs import shown_job
from launcher.report.model.series import MAX_POINTS, RankSpread, Series, charts, metric_series, spreads, usage
from launcher.report.model.summary import RunSummary
from launcher.report.model.troubles import Trouble, troubles
from launcher.report.model.verdict import UNKNOWN
from launcher.report.page.drawing import lanes
from launcher.report.text.status import past
from launcher.report.text.words import QUIET, level, words
from launcher.run import events as ev
from launcher.run.files import WHOLE_BYTES, Damage, read_lines, read_object, read_thinned
from launcher.run.paths import RunPaths
from launcher.run.units import plural, short_list

_TEMPLATES = Path(__file__).parent / "templates"
_MOST_EVENTS = 400
_MOST_RANKS = 32
_TITLES = {
    "throughput": ("Throughput", "steps/s"), "gpu": ("GPU use", "%"), "cpu": ("CPU use of a rank", "%"),
    "gpu_memory": ("GPU memory", "GB"), "gpu_power": ("GPU power", "W"), "memory": ("Memory of a rank", "GB"),
}  # fmt: skip


@dataclasses.dataclass
class PageData:
    """Everything a page says about one run."""

    summary: RunSummary
    history: History
    book: Ledger
    advice: Advice
    why: Why
    wrong: list[Trouble]
    metrics: list[Series]
    whole: bool
    """They are made from every line of the file: no spike is missing, and every value that is not finite is counted."""
    usage: dict[str, list[Series]]
    spread: list[RankSpread]
    environment: dict[str, Any]
    job: str
    """The job's YAML, without what looks like a secret."""
    faults: list[str]
    """What of the run's files could not be read."""

    @property
    def short(self) -> str:
        """The run's short name."""
        return self.summary.run.rsplit("-", 1)[-1]


def read_page_data(h: History, s: RunSummary, now: float) -> PageData:
    """Read what else a page needs of a run: metrics, samples, environment and job."""
    book = ledger(h, s.ended or now)
    damage: list[Damage] = []
    metrics, whole = _read_metrics(h.paths.metrics, damage)
    samples = read_thinned(h.paths.samples, damage, most_lines=MAX_POINTS)
    samples = in_order([line for line in samples if as_number(line.get("t")) is not None])
    environment = read_object(h.paths.environment, damage) or {}
    more = [sentence for d in damage if (sentence := damage_in_words(d, active=s.active))]
    return PageData(
        summary=s, history=h, book=book, advice=advise(h, book), why=explain(h, s, now), wrong=troubles(h, s, now),
        metrics=[m.thin() for m in metric_series(metrics)], whole=whole, usage=usage(samples), spread=spreads(samples),
        environment=environment, job=_job(h.paths), faults=[*s.file_faults, *more],
    )  # fmt: skip


def _read_metrics(path: Path, damage: list[Damage]) -> tuple[list[dict[str, Any]], bool]:
    """Return lines of the metrics, and whether they are all: of a large file some are picked."""
    try:
        whole = path.stat().st_size <= WHOLE_BYTES
    except OSError:
        whole = True
    return (read_lines if whole else read_thinned)(path, damage), whole


def _job(paths: RunPaths) -> str:
    try:
        return shown_job(paths)[:200_000]
    except OSError:
        return ""


def run_page(run: PageData, previous: tuple[str, str] | None, now: float) -> str:
    """Make the page of one run. ``previous``: name and job YAML of the run before it of the same name."""
    s, book = run.summary, run.book
    slowest = sorted(run.spread, key=lambda r: -r.over)[:_MOST_RANKS]
    events = [e for e in run.history.events if not isinstance(e, QUIET)]
    return _render(
        "run.html", now, run=run, title=f"{s.run}: {s.state}", lead=_lead(run, now), tiles=_tiles(run), shares=shares(book),
        seconds={kind: book.seconds[kind] for kind in COUNTED if book.seconds[kind] > 0},
        lanes=lanes(book.segments, run.history), past=past(book, now, limit=8), advice=_advice(run.advice), charts=_charts(run),
        spread=sorted(slowest, key=lambda r: r.rank), widest=max((r.high for r in slowest), default=0),
        events=events[-_MOST_EVENTS:], left_out=max(0, len(events) - _MOST_EVENTS), facts=_facts(run),
        packages=sorted(as_dict(run.environment.get("packages")).items()), previous=previous, diff=changes(previous, run),
        patch=as_text(as_dict(run.environment.get("code")).get("diff")),
    )  # fmt: skip


def _lead(run: PageData, now: float) -> str:
    """Return the sentence below the title: what matters now, or how it ended."""
    s = run.summary
    if not s.active or s.reason.startswith(UNKNOWN):
        return run.why.sentence
    if run.wrong:
        return f"{run.wrong[0].sentence} Next: {run.wrong[0].next.rstrip('.')}."
    if s.state == "pending":
        return f"The run is waiting in the queue{f' ({formats.clean(s.reason, 60)})' if s.reason else ''}."
    speed = f" at {formats.rate(s.rate)}" if s.rate else ""
    left = f", done in {formats.duration(s.eta_s)}" if s.eta_s is not None else ""
    return f"The run is {s.doing}{speed}{left}."


def _tiles(run: PageData) -> list[tuple[str, str, str]]:
    """Return the tiles that hold a figure: label, figure, what stands below it."""
    s, book = run.summary, run.book
    running = s.state == "running" and s.rate
    speed = formats.rate(s.rate if running else mean_speed(run))
    left = f"done in {formats.duration(s.eta_s)}" if s.eta_s is not None else ""
    goodput = formats.percent(book.goodput, 1) if book.goodput is not None and s.started is not None else ""
    spare = f"{formats.hours(book.spare_gpu_hours)} on spare nodes" if book.spare_gpu_hours else ""
    tiles = [
        ("step", formats.count(s.step), f"of {formats.count(s.total_steps)}" if s.total_steps else ""),
        *((formats.clean(name, 24), formats.number(value), "newest") for name, value in list(s.metrics.items())[:2]),
        ("speed", speed, left if running else "average while training"),
        ("goodput", goodput, f"of {formats.duration(book.total_s)}"),
        ("GPU-hours", formats.hours(book.gpu_hours), spare),
        ("CPU-hours", "" if book.gpu_hours else formats.hours(book.cpu_hours), ""),
        ("interruptions", str(len(book.interruptions)), f"{plural(book.lost_steps, 'step')} done again"),
    ]
    return [tile for tile in tiles if tile[1]]


def mean_speed(run: PageData) -> float | None:
    """Return steps per second of useful time; those of another run that this one began from are not its own."""
    useful, first = run.book.seconds["useful"], next(run.history.of(ev.RoundStarted), None)
    steps = (run.summary.step or 0) - ((first.resume_step or 0) if first is not None else 0)
    return steps / useful if steps > 0 and useful > 0 else None


def _advice(a: Advice) -> list[str]:
    """Say what was measured about saving and what follows from it."""
    out = []
    if a.save_cost_s is not None:
        out.append(f"A checkpoint pauses training for {formats.duration(a.save_cost_s)} (median).")
    if a.interval_s is not None:
        seen = f"{'one interruption every' if a.failures else 'no failure in'} {formats.duration(a.mttf_s)}"
        out.append(f"With {seen}, checkpoints are best {formats.duration(a.interval_s)} apart (Young/Daly).")
    if a.lead_s is not None:
        out.append(f"Saving before a time limit needs {formats.duration(a.lead_s)} of warning (restart.signal_lead_s).")
    return out


def _chart(title: str, group: list[Series], unit: str = "", x: str = "step", note: str = "") -> dict[str, Any]:
    """Return a chart as the page's script draws it."""
    return {"title": title, "unit": unit, "x": x, "note": note, "series": [one.as_json() for one in group]}


def _charts(run: PageData) -> list[dict[str, Any]]:
    out = []
    for group in charts(run.metrics):
        broken = sum(s.broken for s in group)
        least = "" if run.whole else "at least "
        out.append(_chart(group[0].name, group, note=f"{least}{plural(broken, 'value')} not finite" if broken else ""))
    over_time = [_chart(_TITLES[name][0], group, _TITLES[name][1], "time") for name, group in run.usage.items()]
    ahead = _ahead_of_utc([t for group in run.usage.values() for one in group for t in one.x])
    return out + [{**chart, "ahead": ahead} for chart in over_time]


def _ahead_of_utc(times: list[float]) -> list[tuple[float, int]]:
    """Return by how many seconds this machine's clock is ahead of UTC, and from when on: charts show the times that tables show."""
    if not times:
        return []
    begin, end = min(times), max(times)
    looks = min(1000, int((end - begin) / 3600) + 1)  # a clock is changed twice a year
    found: list[tuple[float, int]] = []
    for t in (begin + (end - begin) * k / looks for k in range(looks + 1)):
        ahead = time.localtime(t).tm_gmtoff
        if not found or found[-1][1] != ahead:
            found.append((round(t, 3), ahead))
    return found


def _facts(run: PageData) -> list[tuple[str, str]]:
    """Return labelled facts: where, when, with what."""
    s, env = run.summary, run.environment
    code, python = as_dict(env.get("code")), as_dict(env.get("python"))
    rows = [
        ("run", s.dir),
        ("job", f"{s.job_id}, {s.backend}" if s.job_id else s.backend),
        ("submitted", _moment(s.submitted)),
        ("started", _moment(s.started)),
        ("ended", _moment(s.ended)),
        ("nodes", short_list(s.nodes, 8)),
        ("ranks", str(s.world_size or "")),
        ("saved", f"step {formats.count(s.saved_step)}" if s.saved_step is not None else ""),
        ("command", " ".join(redact_words([str(a) for a in as_list(env.get("command"))]))),
        ("submitted from", f"{as_text(env.get('user'))}@{as_text(env.get('host'))}".strip("@")),
        ("system", as_text(env.get("system"))),
        ("python", f"{as_text(python.get('version'))} {as_text(python.get('path'))}".strip()),
        ("commit", as_text(code.get("commit")) + (" with changes" if code.get("dirty") else "")),
    ]
    return [(label, value) for label, value in rows if value]


def _zone(t: float) -> str:
    """Return the zone of this machine's clock: ``CET (UTC+0100)``."""
    name, ahead = (time.strftime(form, time.localtime(t)) for form in ("%Z", "%z"))
    return name if name == "UTC" else f"{name} (UTC{ahead})"


def _moment(t: float | None) -> str:
    return "" if t is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t))


def changes(previous: tuple[str, str] | None, run: PageData) -> list[tuple[str, str]]:
    """Return (kind, line) of the job's changes since ``previous``: name and job YAML of another run."""
    if previous is None:
        return []
    kinds = {"+": "add", "-": "del", "@": "hunk"}
    old, new = previous[1].splitlines(), run.job.splitlines()
    lines = difflib.unified_diff(old, new, previous[0], run.summary.run, n=2, lineterm="")
    return [(kinds.get(line[:1], ""), line) for line in lines]


def compare_page(runs: list[PageData], now: float) -> str:
    """Make one page about several runs: figures side by side, curves over each other, what differs."""
    first = runs[0].summary.run, runs[0].job
    names = list(dict.fromkeys(m.name for run in runs for m in run.metrics))
    return _render(
        "compare.html", now, title="Compared: " + ", ".join(run.short for run in runs), runs=runs, table=_table(runs),
        charts=[_joint_chart(name, runs) for name in names],
        diffs=[(other.summary.run, changes(first, other)) for other in runs[1:]], packages=_package_diff(runs),
    )  # fmt: skip


def _table(runs: list[PageData]) -> list[tuple[str, list[str]]]:
    """Return the figures to compare: label, one value a run."""
    names = list(dict.fromkeys(name for run in runs for name in run.summary.metrics))[:12]
    parts = [shares(run.book) for run in runs]
    rows = [
        ("step", [formats.count(run.summary.step) for run in runs]),
        *((formats.clean(name, 30), [formats.number(run.summary.metrics.get(name)) for run in runs]) for name in names),
        ("speed while training", [formats.rate(mean_speed(run)) for run in runs]),
        ("ranks", [str(run.summary.world_size or "") for run in runs]),
        ("time in all", [formats.duration(run.book.total_s) for run in runs]),
        *((kind, [f"{p.get(kind, 0)} %" for p in parts]) for kind in COUNTED if any(p.get(kind) for p in parts)),
        ("GPU-hours", [formats.hours(run.book.gpu_hours) for run in runs]),
        ("interruptions", [str(len(run.book.interruptions)) for run in runs]),
        ("steps done again", [formats.count(run.book.lost_steps) for run in runs]),
    ]
    return [(label, values) for label, values in rows if any(values)]


def _joint_chart(name: str, runs: list[PageData]) -> dict[str, Any]:
    """Return one metric's chart, a line per run."""
    lines = [dataclasses.replace(m, name=run.short) for run in runs for m in run.metrics if m.name == name]
    return _chart(name, lines)


def _package_diff(runs: list[PageData]) -> list[tuple[str, list[str]]]:
    tables = [as_dict(run.environment.get("packages")) for run in runs]
    rows = [(name, [as_text(t.get(name), "-") for t in tables]) for name in sorted({n for t in tables for n in t})]
    return [(name, versions) for name, versions in rows if len(set(versions)) > 1]


def _render(template: str, now: float, **values: Any) -> str:
    import jinja2

    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    env.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    env.filters |= {
        "clock": lambda t: formats.time_of_day(t, now), "duration": formats.duration, "step_time": formats.step_time, "words": words,
        "level": level,
    }  # fmt: skip
    env.globals["file"] = lambda name: (_TEMPLATES / name).read_text(encoding="utf-8")
    page: str = env.get_template(template).render(**values, made=_moment(now), zone=_zone(now))
    return page
