"""The HTML page: complete, self-contained, and safe whatever a run's files hold."""

from __future__ import annotations

import json
import random
import re
import time
from datetime import datetime, timezone
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from rich_run import make
from run_story import Story

from launcher.report.model.history import read_history
from launcher.report.model.ledger import ledger
from launcher.report.model.runs import shown_job
from launcher.report.model.series import Series, charts, metric_series, spreads, usage
from launcher.report.model.summary import summarise_history
from launcher.report.model.timeline import Segment
from launcher.report.page import page as page_module
from launcher.report.page.drawing import _ticks, lanes
from launcher.report.page.page import PageData, compare_page, read_page_data, run_page
from launcher.run.files import WHOLE_BYTES
from launcher.run.paths import RunPaths

NOW = 1_790_050_000.0


class Elements(HTMLParser):
    """Every element of a page, its attributes, and the text of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self.text: list[str] = []
        self._in = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.tags.append(tag)
        self.attributes += attrs
        self._in = tag

    def handle_endtag(self, tag: str) -> None:
        """Note its end."""
        self._in = ""

    def handle_data(self, data: str) -> None:
        """Note what stands in it."""
        (self.scripts if self._in == "script" else self.text).append(data)


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three small runs: completed, failed, running."""
    return make(tmp_path_factory.mktemp("runs"), now=NOW, scale=0.2)


def told(root: Path) -> PageData:
    """What a page says of the run at ``root``."""
    history = read_history(RunPaths(root))
    return read_page_data(history, summarise_history(history, None, NOW), NOW)


def chart_data(page: str) -> list[dict[str, object]]:
    """The charts in a page."""
    value: list[dict[str, object]] = json.loads(Elements(page).scripts[0])
    return value


@pytest.mark.parametrize("state", ["completed", "failed", "running"])
def test_a_page_loads_nothing(rich: dict[str, Path], state: str) -> None:
    """No address, no import, no element that fetches: it opens without a network."""
    page = run_page(told(rich[state]), None, NOW)
    found = Elements(page)

    assert {"link", "img", "iframe", "object", "embed"} & set(found.tags) == set()
    assert [a for a in found.attributes if a[0] in ("src", "href", "srcset", "action")] == []
    assert not re.search(r"@import|url\(", page)
    assert "default-src 'none'" in page
    assert len(page) < 400_000


def test_a_page_shows_everything(rich: dict[str, Path]) -> None:
    """Outcome, cause, curves, throughput, spread, timeline, use, environment, events and the job's changes are there."""
    page = run_page(told(rich["failed"]), ("resnet50-1119-0911-pq2", "params:\n  lr: 0.1\n"), NOW)
    text = " ".join(Elements(page).text)

    for expected in (
        "Rank 5 (gpu022, GPU 1) ran out of GPU memory", "goodput", "GPU-hours", "attempt 0", "attempt 1", "queued", "useful",
        "Step time by rank", "4f2c1e9b7d with changes", "timm", "Changed since resnet50-1119-0911-pq2", "round 0 started",
        "train.py:118",
    ):  # fmt: skip
        assert expected in text, expected
    titles = [chart["title"] for chart in chart_data(page)]
    assert titles[0] == "loss"
    assert {"Throughput", "GPU use", "CPU use of a rank", "GPU memory", "Memory of a rank", "lr"} <= set(titles)
    assert 'class="rank slow"' in page


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_heading_speaks_of_an_interruption_where_there_was_one(tmp_path: Path, interrupted: bool) -> None:
    """A plain script reports no progress: that is told of it now, under no cause."""
    story = Story(tmp_path).submitted().begins().round_starts()
    if interrupted:
        story.event("node_lost", host="node2", why="silent").event("round_ended", why="x")
        story.event("decision", evidence="node_lost", action="new_round", reason="x; y.").round_starts()
    ranks = [{"rank": r, "phase": "script"} for r in range(4)]
    story.state(ranks=ranks, step=0)
    page = run_page(told(story.paths.root), None, NOW)

    assert ("<h2>Last interruption</h2>" in page, "<h2>Now</h2>" in page) == (interrupted, not interrupted)


def test_curves_hold_what_was_logged(tmp_path: Path) -> None:
    """Numbers reach the page as they are; of a step done twice the later value; what is not finite is a gap."""
    lines = [{"step": 1, "metrics": {"loss": 3}}, {"step": 2, "metrics": {"loss": 9}}, {"step": 2, "metrics": {"loss": 2.5}},
             {"step": 3, "metrics": {"loss": "nan"}}]  # fmt: skip
    (loss,) = metric_series(lines)

    assert (loss.x, loss.y, loss.broken) == ([1, 2, 3], [3, 2.5, None], 1)


def test_a_sum_that_overflows_is_a_gap() -> None:
    """Two ranks of 1e308: the page's data would be no JSON."""
    assert Series("GPU use", [1.0, 2.0], [float("inf"), 3.0]).as_json()["y"] == [None, 3.0]


@pytest.mark.parametrize("most", [WHOLE_BYTES, 100_000], ids=["every line is read", "some are picked"])
def test_every_spike_and_nan_of_a_file_that_is_read_whole_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """One spike in twenty thousand steps is drawn, and three NaNs are three; where lines are picked, it says `at least`."""
    monkeypatch.setattr(page_module, "WHOLE_BYTES", most)
    story = Story(tmp_path).submitted().begins().round_starts()
    values = dict.fromkeys(range(5000, 5003), '"nan"') | {12346: "1e6"}
    lines = [f'{{"step": {step}, "metrics": {{"loss": {values.get(step, "1.0")}}}}}' for step in range(20_001)]
    story.paths.metrics.write_text("\n".join([*lines, ""]))
    h = read_history(story.paths)
    data = read_page_data(h, summarise_history(h, None, story.t), story.t)
    (loss,) = data.metrics
    (note,) = [chart["note"] for chart in page_module._charts(data)]

    assert len(loss.x) < 1000
    if most == WHOLE_BYTES:
        assert (max(v for v in loss.y if v is not None), note) == (1e6, "3 values not finite")
    else:
        assert note == "at least 1 value not finite"


def test_a_gpu_that_was_never_used_is_drawn() -> None:
    """Its 0 % throughout is what the page is to show; where no GPU was read there is no chart."""
    samples = [{"t": float(k), "ranks": [{"rank": 0, "step": k, "gpu_percent": 0.0}]} for k in range(3)]

    assert [one.y for one in usage(samples)["gpu"]] == [[0.0, 0.0, 0.0]] * 3
    assert "gpu_memory" not in usage(samples)


@pytest.mark.parametrize(
    ("saves", "said"), [(400, ""), (401, "1 earlier event is not shown."), (630, "230 earlier events are not shown.")]
)
def test_events_that_are_left_out_are_counted(tmp_path: Path, saves: int, said: str) -> None:
    """The newest 400 are listed; a reader learns that there are more."""
    story = Story(tmp_path)
    for step in range(saves):
        story.event("saved", step=step)
    h = story.history()
    page = run_page(read_page_data(h, summarise_history(h, None, story.t), story.t), None, story.t)

    assert page.count(said or "not shown.") == (1 if said else 0)


def test_charts_and_tables_have_the_makers_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page names its zone, and hands the charts how far that is from UTC, also behind a change to winter time."""
    change = 1_793_512_800.0  # 2026-11-01, 02:00 in New York
    monkeypatch.setenv("TZ", "EST5EDT,M3.2.0,M11.1.0")
    time.tzset()
    try:
        story = Story(tmp_path)
        lines = [{"t": change + 600 * k, "ranks": [{"rank": 0, "cpu_percent": 5.0}]} for k in range(-60, 61)]
        story.paths.samples.write_text("".join(json.dumps(line) + "\n" for line in lines))
        h = story.history()
        page = run_page(
            read_page_data(h, summarise_history(h, None, change + 86400), change + 86400), None, change + 86400
        )
    finally:
        monkeypatch.undo()
        time.tzset()
    (chart,) = chart_data(page)
    (begin, summer), (later, winter) = chart["ahead"]

    assert "EST (UTC-0500)" in page
    assert (summer, winter, begin) == (-4 * 3600, -5 * 3600, change - 36000)
    assert 0 <= later - change <= 3600


def test_thinning_keeps_spikes() -> None:
    """The highest and the lowest of each stretch stay."""
    many = Series("loss", [float(i) for i in range(10_000)], [1.0] * 10_000)
    many.y[5003], many.y[7777] = 50.0, -50.0
    few = many.thin(800)

    assert len(few.x) <= 801
    assert (max(v for v in few.y if v), min(v for v in few.y if v)) == (50.0, -50.0)
    assert few.x == sorted(few.x)


def test_metrics_of_one_stem_share_a_chart() -> None:
    """loss and val_loss belong together; losses come first, then accuracies."""
    names = ["lr", "val_accuracy", "loss", "test/loss", "train_accuracy"]
    groups = [[s.name for s in group] for group in charts([Series(n) for n in names])]

    assert groups == [["loss", "test/loss"], ["val_accuracy", "train_accuracy"], ["lr"]]


def test_stragglers_stand_out() -> None:
    """A rank a tenth slower than the middle of all is one; jitter is none."""
    r = random.Random(1)
    samples = [{"ranks": [{"rank": k, "host": "n", "step_time_s": (0.6 if k == 2 else 0.5) * r.uniform(0.98, 1.02)} for k in range(4)]}
               for _ in range(50)]  # fmt: skip

    assert [s.rank for s in spreads(samples) if s.straggler] == [2]


def test_the_timelines_lanes_fill_the_axis(rich: dict[str, Path]) -> None:
    """A lane per attempt; its boxes follow each other and end at the right edge."""
    history = read_history(RunPaths(rich["completed"]))
    drawn = lanes(ledger(history, NOW).segments, history)

    assert [lane.label for lane in drawn.lanes] == ["attempt 0", "attempt 1"]
    edges = [(b.left, b.left + b.width) for lane in drawn.lanes for b in lane.boxes]
    assert edges[0][0] == 0
    assert edges[-1][1] == pytest.approx(100, abs=0.5)
    assert all(after[0] >= before[1] - 0.001 for before, after in pairwise(edges))


def test_thousands_of_attempts_are_drawn_soon(tmp_path: Path) -> None:
    """The newest 40 of 5,000 fill the width, in time that grows with the events; a narrow attempt is not hidden by marks."""
    story = Story(tmp_path).submitted()
    for number in range(5000):
        story.wait(60).begins().wait(5).round_starts(resume_step=8 * number or None).wait(3).event(
            "first_step", step=8 * number + 1
        ).wait(400)
        story.event("saved", step=8 * number + 8, seconds=2, reason="stop").event(
            "stopped", step=8 * number + 8, lost_steps=0
        )
        story.event("attempt_ended", why="preempted", allocation_s=408).event("requeued", how="requeue", job_id="1")
    history = story.history()
    begun = time.process_time()
    book = ledger(history, story.t)
    drawn = lanes(book.segments, history)

    assert time.process_time() - begun < 5.0
    assert book.seconds["useful"] == pytest.approx(5000 * 400, rel=0.01)
    assert (len(drawn.lanes), drawn.hidden) == (40, 4960)
    assert drawn.lanes[0].boxes[0].left == 0
    assert drawn.lanes[-1].boxes[-1].left + drawn.lanes[-1].boxes[-1].width == pytest.approx(100, abs=0.5)
    assert not any(lane.rounds for lane in drawn.lanes)


EVIL = "</script><script>alert(1)</script>\"><img src=x onerror=alert(1)>'{{7919*7907}}\u2028"


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    """Names, hosts, messages, metrics, jobs and versions that look like HTML or JavaScript change nothing of the page."""
    story = Story(tmp_path, python=EVIL).submitted(job_id=EVIL, changes=[EVIL]).begins(host=EVIL).round_starts()
    story.event("first_step", step=1).event("warning", text=EVIL)
    cause = {
        "kind": "exception",
        "exception": "ValueError",
        "message": EVIL,
        "frames": [{"file": EVIL, "line": 1, "code": EVIL}],
    }
    story.event("worker_failed", rank=0, host=EVIL, step=2, cause=cause)
    story.event("decision", evidence="worker_failed", action="fail", reason=EVIL)
    line = {"t": story.t, "step": 1, "metrics": {EVIL: 1.0, "loss": 2.0}}
    story.paths.metrics.write_text(json.dumps(line) + "\n")
    sample = {"t": story.t, "ranks": [{"rank": 0, "host": EVIL, "step": 1, "step_time_s": 0.1}]}
    story.paths.samples.write_text(json.dumps(sample) + "\n")
    story.paths.job.write_text(f"name: {EVIL}\n")
    story.paths.environment.write_text(json.dumps({"host": EVIL, "packages": {EVIL: EVIL}, "code": {"diff": EVIL}}))
    story.outcome("failed", EVIL, metrics={EVIL: 3})
    for page in (
        run_page(told(story.paths.root), (EVIL, "name: x"), NOW),
        compare_page([told(story.paths.root)] * 2, NOW),
    ):
        found = Elements(page)
        assert found.tags.count("script") == 2
        assert "img" not in found.tags
        assert [name for name, _ in found.attributes if name.startswith("on")] == []
        assert "62615533" not in page  # the product of 7919 and 7907: no template was run
        assert any(EVIL[:20] in str(chart["title"]) for chart in chart_data(page))


def test_secrets_in_a_job_do_not_reach_the_page(tmp_path: Path) -> None:
    """What looks like a secret in job.yaml is left out."""
    story = Story(tmp_path).submitted()
    story.paths.job.write_text("environment:\n  variables: {WANDB_API_KEY: 0123456789abcdef0123}\n")

    assert "0123456789abcdef0123" not in run_page(told(story.paths.root), None, NOW)


def test_secrets_in_arguments_do_not_reach_the_page(tmp_path: Path) -> None:
    """Short words, told by an option or a key alone: in the job, in the job before it and in the command, older runs' too."""
    story = Story(tmp_path).submitted()
    story.paths.job.write_text(
        "script: t.py\nargs: [--password, hunter, --api-key=hunter, --lr, 3]\nparams: {token: hunter}\n"
    )
    story.paths.environment.write_text(
        json.dumps({"command": ["launcher", "run", "t.py", "--", "--password", "hunter"]})
    )
    page = run_page(told(story.paths.root), ("net", shown_job(story.paths)), NOW)

    assert "hunter" not in page
    assert "--lr" in page


@pytest.mark.parametrize(
    "junk", ["", "{", "[]", "null", '{"t": "x"}', '{"t": 1, "type": 5}\n{"t": 2, "type": "saved"}', "\xff\x00"]
)
def test_a_page_of_a_broken_run_is_still_a_page(tmp_path: Path, junk: str) -> None:
    """Torn, empty and foreign files leave their parts out."""
    names = [
        "events.jsonl",
        "metrics.jsonl",
        "samples.jsonl",
        "state.json",
        "outcome.json",
        "spec.json",
        "environment.json",
        "job.yaml",
    ]
    for name in names:
        (tmp_path / f"a-1121-0842-{name[:3]}").mkdir(exist_ok=True)
        (tmp_path / f"a-1121-0842-{name[:3]}" / name).write_text(junk)
    for root in sorted(tmp_path.iterdir()):
        assert "<h1>" in run_page(told(root), None, NOW)


def test_comparing_shows_figures_side_by_side(rich: dict[str, Path]) -> None:
    """One column and one line of each curve per run; what differs between their jobs and packages."""
    page = compare_page([told(rich["completed"]), told(rich["failed"])], NOW)
    text = " ".join(Elements(page).text)

    assert [s["name"] for s in chart_data(page)[0]["series"]] == ["pq2", "m3x"]  # type: ignore[attr-defined]
    assert "+  lr: 0.4" in text
    assert "All runs had the same versions." in text
    assert "interruptions" in text


def test_the_axis_of_a_run_that_lay_still_for_a_year_is_drawn_at_once(tmp_path: Path) -> None:
    """Ticks stand where it was wanted to run; the time between takes none, however long it was."""
    story = Story(tmp_path).submitted().begins().wait(1).round_starts().event("first_step", step=1).wait(30)
    story.event("attempt_ended", why="x").outcome("failed", "boom", step=1).wait(365 * 86400)
    story.submitted(by="resubmit").begins().wait(1).round_starts().event("first_step", step=1).wait(30)
    history = story.history()
    segments = ledger(history, story.t).segments
    began = time.process_time()
    drawn = lanes(segments, history)

    assert time.process_time() - began < 0.5
    assert len(drawn.ticks) >= 4
    assert all(0 <= x <= 97 for x, _ in drawn.ticks)
    assert all(after - before >= 8 for (before, _), (after, _) in pairwise(drawn.ticks))


@pytest.mark.parametrize(("hours", "clocks"), [(144, {"00:00"}), (30, {"00:00", "06:00", "12:00", "18:00"})])
def test_ticks_stand_at_round_local_times_when_the_clock_changes(
    monkeypatch: pytest.MonkeyPatch, hours: int, clocks: set[str]
) -> None:
    """Berlin goes back by an hour on 2026-10-25: before and after it a tick is at midnight, not at 23:00."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    begin = datetime(2026, 10, 24, 10, 7, tzinfo=timezone.utc).timestamp()
    until = begin + 3600 * hours
    try:
        ticks = _ticks([Segment("useful", begin, until, 0)], lambda t: 96 * (t - begin) / (until - begin))
        times = [time.localtime(round(begin + x / 96 * (until - begin))) for x, _ in ticks]
    finally:
        monkeypatch.undo()
        time.tzset()

    assert len(times) >= 4
    assert {time.strftime("%H:%M", t) for t in times} <= clocks
    assert [label for _, label in ticks] == [time.strftime("%m-%d %H:%M" if hours < 48 else "%m-%d", t) for t in times]
