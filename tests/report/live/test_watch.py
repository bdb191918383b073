"""The live view: screens that fit, keys that work, a real terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path
from types import SimpleNamespace

import pytest
from run_story import Story, training

from launcher.cli import watch
from launcher.cli.watch import decode
from launcher.errors import RunDirError, RunGoneError
from launcher.report.live import feed
from launcher.report.live.feed import LiveFeed, tail_objects
from launcher.report.live.screen import detail_screen, folded, in_ascii, log_screen, overview_screen
from launcher.report.live.sparks import bar, spark
from launcher.report.live.view import View
from launcher.report.model import runs
from launcher.report.text.listing import ListingRow
from launcher.run.paths import RunPaths

NOW = 1_790_050_000.0
SIZES = [(80, 24), (120, 40), (60, 12), (200, 60), (40, 8)]


@pytest.fixture
def view(rich: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> View:
    """A view of those runs whose cancels are remembered in its note."""
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(rich["running"].parent))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return View(LiveFeed(), stop=lambda paths: f"stopped {paths.id}")


def shown(view: View, width: int = 80, height: int = 24) -> list[str]:
    """The screen as plain lines."""
    return [line.plain for line in view.render(width, height, NOW)]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_every_screen_fits_its_terminal(view: View, rich: dict[str, Path], width: int, height: int) -> None:
    """Exactly as many lines as the terminal has, none longer than it is wide; overview, run and log."""
    for keys in ([], ["enter"], ["l"]):
        for key in keys:
            view.press(key)
        lines = shown(view, width, height)
        assert len(lines) == height
        assert max(len(line) for line in lines) <= width


def test_the_run_that_trains_comes_first(view: View) -> None:
    """Runs that are not over stand above those that are; share, steps a second, loss and time left are shown."""
    lines = shown(view)

    assert lines[0].startswith("1 running, 0 pending, 2 ended")
    assert lines[2].startswith("▶ resnet50-1121-0842-k7f")
    assert lines[2].split()[2:] == ["running", "42", "%", "2.27/s", "1.75", "4", "min"]


def test_keys_lead_through_the_view(view: View) -> None:
    """Down, open, choose a rank, its log, back, back, quit."""
    shown(view)
    view.press("enter")
    lines = shown(view)
    assert lines[0].startswith("resnet50-1121-0842-k7f  running")
    assert any(line.startswith("loss ") for line in lines)
    assert any(line.startswith("▶ gpu014") for line in lines)
    for _ in range(3):
        view.press("down")
    view.press("l")
    assert shown(view)[0].startswith("rank 3 of 8")
    view.press("left")
    view.press("left")
    assert "running" in shown(view)[0]
    view.press("q")
    assert view.done


def test_a_sweep_opens_to_its_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enter shows the sweep's points, then one of them; left leads back; the sweep as a whole is cancelled by the verb."""
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    sweep = tmp_path / "lr-1121-0842-abc"
    points = [Story(sweep, "lr", f"1121-0842-abc-{i}").submitted().paths.root for i in range(2)]
    (sweep / "sweep.json").write_text(json.dumps({"points": [{"run": p.name, "overrides": [f"lr={p.name[-1]}"]} for p in points]}))  # fmt: skip
    view = View(LiveFeed(), stop=lambda paths: "")
    assert "2 points: 2 pending" in shown(view)[2]
    view.press("c")
    assert shown(view)[-1].startswith("launcher cancel lr-1121-0842-abc --save")
    view.press("enter")
    assert [line[:6] for line in shown(view)[2:4]] == ["▶ lr=0", "  lr=1"]
    view.press("down")
    view.press("l")
    assert shown(view)[0].startswith(points[1].name)
    view.press("h")
    view.press("esc")
    assert (view.run, view.sweep, view.place, view.done) == (None, None, 0, False)


def test_cancelling_asks_first(view: View) -> None:
    """One key asks, only y does it, any other key leaves the run alone; runs that are over cannot be cancelled."""
    shown(view)
    view.press("c")
    assert shown(view)[-1].startswith("Save and cancel resnet50-1121-0842-k7f? y/n")
    view.press("x")
    assert "stopped" not in shown(view)[-1]
    assert not view.obey()
    view.press("c")
    view.press("y")
    assert shown(view)[-1].startswith("saving and cancelling resnet50-1121-0842-k7f ...")
    assert view.obey()
    assert not view.obey()
    assert shown(view)[-1].startswith("stopped resnet50-1121-0842-k7f")
    view.press("down")
    shown(view)
    view.press("c")
    assert shown(view)[-1].startswith("this run has ended")


def test_a_log_is_shown_from_its_end(tmp_path: Path) -> None:
    """The last lines, or lines further up; escapes and progress bars cannot steer the terminal."""
    log = [f"line {i}" for i in range(100)] + ["\x1b[31mred\x1b[0m", "10%\r50%\r90%", "\x1b]0;title\x07bell\x07"]
    log = folded(log, 40)
    lines = [line.plain for line in log_screen("rank 0", log, 0, 40, 8)]

    assert lines[1:7] == ["line 97", "line 98", "line 99", "red", "90%", "bell·"]
    assert log_screen("rank 0", log, 50, 40, 8)[6].plain == "line 52"


def test_long_lines_of_a_log_go_on_below() -> None:
    """The end of an error message is not cut off, and characters of two columns count as two."""
    assert folded(["RuntimeError: it broke", "", "模型模型"], 10) == ["RuntimeErr", "or: it bro", "ke", "", "模型模型"]
    assert folded(["模型模型"], 5) == ["模型", "模型"]


def test_slow_and_silent_ranks_stand_out(tmp_path: Path) -> None:
    """The slowest rank is marked by a sign, not by colour alone; an old heartbeat shows its age."""
    story = Story(tmp_path).submitted().begins().round_starts().event("first_step", step=1)
    ranks = [{"rank": r, "host": "n1", "pid": 1, "step": 5, "step_time_s": 0.5 if r != 2 else 0.7, "heartbeat_t": story.t - 12 * (r == 1)}
             for r in range(4)]  # fmt: skip
    story.state(step=5, ranks=ranks)
    lines = [line.plain for line in detail_screen(LiveFeed().detail(story.paths, story.t), 0, 80, 24)]

    assert next(line for line in lines if "▲ 700 ms" in line).split()[:2] == ["n1", "2"]
    assert " 12 s" in next(line for line in lines if line.split()[:2] == ["n1", "1"])


def test_many_ranks_are_scrolled(tmp_path: Path) -> None:
    """Of 256 ranks those around the marked one are shown, and how many are not."""
    story = Story(tmp_path).submitted().begins().round_starts()
    story.state(step=5, ranks=[{"rank": r, "host": f"n{r // 8}", "pid": 1} for r in range(256)])
    detail = LiveFeed().detail(story.paths, story.t)
    lines = [line.plain for line in detail_screen(detail, 200, 80, 24)]

    assert any(line.startswith("▶ n25") and " 200 " in line for line in lines)
    assert any("more)" in line for line in lines)


def test_an_empty_overview_says_what_to_do() -> None:
    """Without runs there is a hint."""
    assert "no runs yet" in overview_screen([], 0, 80, 24, NOW)[2].plain


def test_three_hundred_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest are shown and scrolled to the last; how many are not shown is said."""
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)  # ./runs is looked into, too: `make demo` leaves one in the repository
    for number in range(300):
        Story(tmp_path, "many", f"1121-0842-{number:03d}").outcome("completed", "All steps are done.", exit_code=0)
    view = View(LiveFeed(), stop=lambda paths: "")
    shown(view)
    for _ in range(250):
        view.press("down")
    lines = shown(view)

    assert lines[0].startswith("0 running, 0 pending, 200 ended, 100 older not shown")
    assert sum(line.startswith("▶") for line in lines) == 1
    assert lines[-2].startswith("▶")


def test_a_poor_terminal_gets_ascii(view: View) -> None:
    """The kernel's console and old locales have no block characters: as wide, without them, colours kept."""
    view.press("enter")
    rich_lines = view.render(80, 24, NOW)
    before = [(len(line.plain), line.spans) for line in rich_lines]
    plain = in_ascii(rich_lines)

    assert [(len(line.plain), line.spans) for line in plain] == before
    assert all(line.plain.isascii() for line in plain)


def test_a_sweep_is_one_line() -> None:
    """Its points' states are counted."""
    points = [ListingRow(f"p{i}", "running" if i < 2 else "completed", sweep="lr-1121-0842-abc") for i in range(5)]
    line = overview_screen([points], 0, 100, 10, NOW)[2].plain

    assert "lr-1121-0842-abc (sweep)" in line
    assert "5 points: 2 running, 3 completed" in line


def test_bars_and_sparklines() -> None:
    """Eighths of a character; gaps stay gaps; a constant is no line at the bottom."""
    assert [bar(share, 4) for share in (0, 0.5, 1, 2, float("nan"))] == ["────", "██──", "████", "████", "────"]
    assert spark([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert spark([1, None, 1], 10) == "▄ ▄"
    assert len(spark([float(i) for i in range(1000)], 50)) == 50
    assert spark([], 5) == spark([None], 5) == ""


@pytest.mark.parametrize(
    ("raw", "keys"),
    [(b"q", ["q"]), (b"\x1b[A\x1b[B", ["up", "down"]), (b"\x1bOC", ["right"]), (b"\x1b", ["esc"]), (b"\r", ["enter"]),
     (b"\x1b[5~c", ["pgup", "c"])],
)  # fmt: skip
def test_keys_are_named(raw: bytes, keys: list[str]) -> None:
    """Arrow keys in both of a terminal's modes, several keys at once, a bare escape."""
    assert decode(raw) == keys


def test_the_tail_of_a_file_skips_the_torn_line(tmp_path: Path) -> None:
    """A line cut by the window's beginning, or half-written at the end, is no object."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": 3}\n{"a":')

    assert tail_objects(path, 20) == [{"a": 3}]
    assert tail_objects(path, most=2) == [{"a": 3}]  # the half-written one is the second
    assert tail_objects(tmp_path / "none") == []


def test_unchanged_files_are_not_read_again(rich: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics of a run that stands still are parsed once."""
    import launcher.report.live.feed as module

    reads: list[Path] = []
    original = module.tail_objects
    monkeypatch.setattr(module, "tail_objects", lambda path, *a: reads.append(path) or original(path, *a))
    feed = LiveFeed()
    for _ in range(3):
        feed.detail(RunPaths(rich["completed"]), NOW)

    assert len(reads) == 2


def environment(rich: dict[str, Path], home: Path) -> dict[str, str]:
    """For a subprocess that sees these runs alone."""
    runs = str(rich["running"].parent)
    return {
        **os.environ,
        "LAUNCHER_RUNS_DIR": runs,
        "XDG_STATE_HOME": str(home),
        "HOME": str(home),
        "TERM": "xterm-256color",
    }


def test_it_works_in_a_real_terminal(rich: dict[str, Path], tmp_path: Path) -> None:
    """In a pseudo-terminal of 80x24 the overview appears, enter opens a run, q leaves and the terminal is as before."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(slave)
    command = [sys.executable, "-m", "launcher", "watch"]
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment(rich, tmp_path), cwd=tmp_path
    )
    try:
        seen = until(master, b"", b"q quit")
        assert b"resnet50-1121-0842-k7f" in seen
        os.write(master, b"\r")
        until(master, seen, b"all runs")
        os.write(master, b"q")
        until(master, b"", b"\x1b[?1049l")
        assert process.wait(timeout=60) == 0
        assert termios.tcgetattr(slave) == before
    finally:
        process.kill()
        process.wait()
        os.close(master)
        os.close(slave)


def until(fd: int, seen: bytes, expected: bytes) -> bytes:
    """Read from the terminal until ``expected`` has appeared after ``seen``."""
    new, deadline = b"", time.monotonic() + 120
    while expected not in new:
        ready, _, _ = select.select([fd], [], [], deadline - time.monotonic())
        assert ready, f"{expected!r} did not appear"
        new += os.read(fd, 65536)
    return new


def test_a_pipe_is_told_that_the_folder_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was printed stays; the verb ends with the exit code of a run that is gone, and does not wait for ever."""
    paths, looks = training(tmp_path).paths, iter(range(5))

    def sleep(_seconds: float) -> None:
        assert next(looks, None) is not None, "it goes on"
        shutil.rmtree(paths.root, ignore_errors=True)

    monkeypatch.setattr(watch, "_GONE_S", 0.0)
    monkeypatch.setattr(watch, "time", SimpleNamespace(sleep=sleep, time=time.time, monotonic=time.monotonic))
    monkeypatch.setattr(runs, "ask_slurm", lambda _ids: None)

    with pytest.raises(RunGoneError, match=f"its folder {paths.root} was deleted or moved"):
        watch._follow(paths, as_json=False)


def test_a_pipe_is_told_that_the_files_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a history nobody knows when the run has ended: after some seconds the verb says so instead of waiting for ever."""
    paths, looks = training(tmp_path).paths, iter(range(5))
    paths.events.write_text("no JSON\n")
    sleep = SimpleNamespace(sleep=lambda _: next(looks), time=time.time, monotonic=time.monotonic)
    monkeypatch.setattr(watch, "_GONE_S", 0.0)
    monkeypatch.setattr(watch, "time", sleep)
    monkeypatch.setattr(runs, "ask_slurm", lambda _ids: None)

    with pytest.raises(RunDirError, match=f"{paths.id}: its files cannot be read, so its state is not known"):
        watch._follow(paths, as_json=False)


def test_a_run_whose_folder_vanishes_does_not_seem_to_wait(tmp_path: Path) -> None:
    """The last picture stays; after some seconds the last line says that the folder is gone, and a folder that is back is read."""
    story = training(tmp_path)
    view = View(LiveFeed(), stop=lambda paths: "", run=story.paths, gone_s=0.0)

    def look() -> tuple[bool, bool]:
        lines = [line.plain for line in view.render(120, 24, story.t)]
        return "running" in lines[0], lines[-1].startswith(f"its folder was deleted or moved: {story.paths.root}"[:118])

    assert look() == (True, False)
    story.paths.root.rename(tmp_path / "away")
    assert look() == (True, True)
    (tmp_path / "away").rename(story.paths.root)
    assert look() == (True, False)


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_sweep_whose_folder_is_away_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], comes_back: bool
) -> None:
    """While it is away for a moment nothing is said of its points; what was deleted or moved is no success."""
    sweep, away = tmp_path / "lr-1121-0842-k7f", tmp_path / "away"
    story = training(sweep)
    (sweep / "sweep.json").write_text(json.dumps({"points": [{"run": story.paths.id, "overrides": []}]}))
    acts = [lambda: sweep.rename(away), lambda: None]
    acts += [lambda: away.rename(sweep), lambda: story.outcome("completed") and None] if comes_back else []
    clock = SimpleNamespace(now=0.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds
        if acts:
            acts.pop(0)()

    monkeypatch.setattr(feed, "LISTING_EVERY_S", 0.0)
    monkeypatch.setattr(watch, "_GONE_S", 1.0)
    monkeypatch.setattr(
        watch, "time", SimpleNamespace(sleep=lambda _s: sleep(0.5), time=time.time, monotonic=lambda: clock.now)
    )
    monkeypatch.setattr(runs, "ask_slurm", lambda _ids: None)

    if comes_back:
        watch._follow_sweep(sweep, as_json=False)
        assert capsys.readouterr().out.splitlines()[-1] == f"{sweep.name}  1 points: 1 completed"
    else:
        with pytest.raises(RunGoneError, match=f"its folder {sweep} was deleted or moved"):
            watch._follow_sweep(sweep, as_json=False)


def test_into_a_pipe_events_are_printed_in_words(rich: dict[str, Path], tmp_path: Path) -> None:
    """Without a terminal: one line per event, then the summary, then the end; no escape codes."""
    command = [sys.executable, "-m", "launcher", "watch", "m3x"]
    done = subprocess.run(
        command, env=environment(rich, tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    )

    assert "attempt 0 started on gpu014" in done.stdout
    assert "SIGTERM on gpu014: preempted" in done.stdout
    assert "resnet50-1120-1702-m3x  failed" in done.stdout
    assert "\x1b" not in done.stdout
