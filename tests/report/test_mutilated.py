"""Run directories that were cut short, scribbled over, half deleted or written by another version: every verb survives them."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from examples import examples
from hypothesis import example, given
from hypothesis import strategies as st
from modes import bound_by_modes
from rich_run import make

from launcher.cli.main import main
from launcher.errors import LauncherError
from launcher.report.live.feed import LiveFeed
from launcher.report.live.view import View
from launcher.report.model.history import as_time
from launcher.run.events import parse_event
from launcher.run.paths import RunPaths

NOW = 1_790_050_000.0
STATES = ("completed", "failed", "running")
FILES = ("events.jsonl", "state.json", "outcome.json", "spec.json", "submission.json", "metrics.jsonl", "samples.jsonl",
         "environment.json", "job.yaml", "logs/attempt-1/round-0/rank-00000.log")  # fmt: skip
HOSTILE: list[Any] = [None, True, -1, 0, 1.5, 1e308, 10**30, 10**400, float("nan"), float("inf"), "", "nan", "\ud800", "\x1b[31m<b>",
                      "x" * 5000, [], [[]], [None], {}, {"rank": []}, [{"rank": "a", "host": 3}], [{}]]  # fmt: skip
VERBS = (["ls"], ["ls", "--json"], ["status"], ["status", "{run}"], ["status", "--json", "{run}"], ["why", "{run}"],
         ["why", "--json", "{run}"], ["nodes"], ["logs", "{run}"], ["logs", "{run}", "--json"],
         ["report", "{run}", "-o", "page.html"], ["report", "--json", "{run}"])  # fmt: skip
CODES = {0} | {cls.exit_code for cls in LauncherError.__subclasses__()} - {1}


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three small whole runs, each with a log."""
    runs = make(tmp_path_factory.mktemp("whole"), now=NOW, scale=0.02)
    for root in runs.values():
        log = RunPaths(root).rank_log(1, 0, 0)
        log.parent.mkdir(parents=True)
        log.write_text("step 1\n" * 50)
    return runs


def cut(path: Path, at: int, junk: bytes) -> None:
    """The file ends in the middle, and something foreign follows."""
    raw = path.read_bytes()
    path.write_bytes(raw[: at % (len(raw) + 1)] + junk)


def scribble(path: Path, at: int, junk: bytes) -> None:
    """Other bytes in the middle, as a bad disk or two writers leave them."""
    raw = path.read_bytes()
    begin = at % (len(raw) + 1)
    path.write_bytes(raw[:begin] + junk + raw[begin + len(junk) :])


def poison(path: Path, at: int, junk: bytes) -> None:
    """One value of one object is of another type, or one key is missing."""
    lines = (
        path.read_text(errors="replace").splitlines() if path.suffix == ".jsonl" else [path.read_text(errors="replace")]
    )
    number = at % max(1, len(lines))
    try:
        value = json.loads(lines[number])
        key = list(value)[at // 7 % len(value)]
    except (ValueError, IndexError, TypeError, ZeroDivisionError, RecursionError):
        return
    if junk[:1] < b"\x20":
        del value[key]
    else:
        value[key] = HOSTILE[at // 3 % len(HOSTILE)]
    lines[number] = json.dumps(value)
    path.write_text("\n".join(lines) + "\n")


def nest(path: Path, at: int, junk: bytes) -> None:
    """JSON deeper than any reader likes."""
    path.write_text('{"t": ' * 100_000 if at % 2 else "[" * 100_000 + "\n")


def drop(path: Path, at: int, junk: bytes) -> None:
    """It is gone, or empty."""
    path.unlink()
    if at % 2:
        path.touch()


def replace(path: Path, at: int, junk: bytes) -> None:
    """A folder, a link that leads nowhere or one that leads to itself, where a file should be."""
    path.unlink()
    if at % 3 == 0:
        path.mkdir()
    else:
        path.symlink_to(path.name if at % 3 == 1 else "nowhere")


def faulty(root: Path, *, active: bool) -> set[str]:
    """The files of which something cannot be read, found another way: what ``status`` must name, and no other."""

    def is_event(line: bytes) -> bool:
        value = parsed(line)
        if not (isinstance(value, dict) and isinstance(value.get("type"), str) and as_time(value.get("t")) is not None):
            return False
        problems: list[str] = []
        parse_event(value, problems)
        return not problems

    def parsed(raw: bytes) -> Any:
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            return None

    found = set()
    for name in ("state.json", "outcome.json", "spec.json", "submission.json"):
        path = root / name
        value = parsed(path.read_bytes()) if path.is_file() and not path.is_symlink() else None
        linked = path.is_symlink()  # no missing file, wherever it leads
        if not isinstance(value, dict):
            bad = path.exists() or linked or name == "spec.json"
        else:
            bad = name == "spec.json" and value.get("version") != 1
        if bad:
            found.add(name)
    events = root / "events.jsonl"
    *lines, rest = events.read_bytes().split(b"\n") if events.is_file() else [b"missing", b""]
    if not active or isinstance(parsed(rest), dict):  # else it is being written
        lines.append(rest)
    if not any(lines) or not all(is_event(line) for line in lines if line.strip()):
        found.add(events.name)
    return found


Mutilation = Callable[[Path, int, bytes], None]
KINDS: tuple[Mutilation, ...] = (cut, scribble, poison, poison, poison, nest, drop, replace)
WOUNDS = st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(FILES), st.integers(0, 10**6), st.binary(max_size=40)),
                  min_size=1, max_size=4)  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home of its own, where no SLURM answers."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAUNCHER_RUNS_DIR", str(home / "runs"))
        patch.setenv("XDG_STATE_HOME", str(home / "state"))
        patch.setenv("PATH", str(Path(sys.executable).parent))
        patch.setenv("LAUNCHER_DEBUG", "1")  # a fault of ours is raised, not told
        patch.chdir(home)
        yield home


def run(*words: str) -> tuple[int, str]:
    """The verb's exit code and what it said, through an output that takes UTF-8 alone; a fault of ours is raised."""
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="utf-8", errors="strict")
    with redirect_stdout(out), redirect_stderr(out):
        try:
            code = main(list(words))
        except LauncherError as error:
            code = error.exit_code
        out.flush()
    return code, raw.getvalue().decode(errors="replace")  # a log passes byte for byte


def stamps(folder: Path) -> dict[str, int]:
    """When each file below was changed."""
    return {str(p): p.lstat().st_mtime_ns for p in sorted(folder.rglob("*"))}


@examples(12)
@given(state=st.sampled_from(STATES), wounds=WOUNDS)
@example(state="running", wounds=[(nest, "events.jsonl", 1, b""), (nest, "state.json", 0, b"")])
@example(state="failed", wounds=[(nest, name, 0, b"") for name in FILES])
@example(state="completed", wounds=[(drop, name, 1, b"") for name in FILES])
@example(state="running", wounds=[(replace, name, 0, b"") for name in FILES])
@example(state="completed", wounds=[(poison, "outcome.json", 71197, b" ")])  # its state is a list
def test_no_wound_breaks_a_reading_verb(originals: dict[str, Path], place: Path, state: str, wounds: list[Any]) -> None:
    """Every verb ends with a code of the tree or 0 and never with a fault of ours; nothing is written into the run."""
    runs = place / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    name = originals[state].name
    shutil.copytree(originals[state], runs / name, symlinks=True)
    for kind, file, at, junk in wounds:
        path = runs / name / file
        if path.is_file() and not path.is_symlink():
            kind(path, at, junk)
    before = stamps(runs)

    for words in VERBS:
        code, said = run(*(w.format(run=name) for w in words))
        assert code in CODES, (words, code, said)
        value = json.loads(said) if "--json" in words and code == 0 and words[0] != "logs" else None
        if words == ["status", "--json", "{run}"] and value is not None:
            named = {fault.partition(":")[0] for fault in value["file_faults"]}
            assert named == faulty(runs / name, active=value["state"] in ("pending", "running")), value
    view = View(LiveFeed(), stop=lambda paths: "")
    for keys in ([], ["enter"], ["l"]):
        for key in keys:
            view.press(key)
        assert len(view.render(80, 24, NOW)) == 24
    assert stamps(runs) == before


def test_a_run_that_goes_away_while_it_is_read(originals: dict[str, Path], place: Path) -> None:
    """Its folder is removed between the list and the look: the others are shown, the lost one is not, nothing breaks."""
    runs = place / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    for state in STATES:
        shutil.copytree(originals[state], runs / originals[state].name)
    from launcher.report.model.runs import all_runs
    from launcher.report.text import listing

    known = all_runs()
    shutil.rmtree(runs / originals["running"].name)
    shutil.rmtree(runs / originals["completed"].name)
    assert [row.run for row in listing.rows(known, NOW)] == [originals["failed"].name]

    view = View(LiveFeed(), stop=lambda paths: "")
    view.render(80, 24, NOW)
    view.press("enter")
    shutil.rmtree(runs / originals["failed"].name)
    assert len(view.render(80, 24, NOW)) == 24


def test_a_run_of_somebody_else_is_no_fault(originals: dict[str, Path], place: Path) -> None:
    """Files that may not be read, and a whole directory that may not, leave their parts out."""
    runs = place / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    name = originals["failed"].name
    shutil.copytree(originals["failed"], runs / name)
    for words in VERBS:
        run(*(w.format(run=name) for w in words))  # whatever they import is imported now
    for wounded in (*(runs / name).iterdir(), runs / name):
        wounded.chmod(0)
        with bound_by_modes():
            for words in VERBS:
                code, said = run(*(w.format(run=name) for w in words))
                assert code in CODES, (wounded, words, said)
                if words == ["status", "{run}"] and wounded.name in ("events.jsonl", "spec.json", "state.json"):
                    assert f"{wounded.name}: could not be read (Permission denied)" in said
        wounded.chmod(0o700)
