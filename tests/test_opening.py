"""What stands in the place of a run's file: a pipe, a device, a link or a file without an end hangs no reader and leads no writer away."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.node.agent.logs import last_lines, open_log
from launcher.node.sidecars.trackers import read_rows
from launcher.opening import UnfitFileError, open_to_append, read_whole
from launcher.report.diagnosis.traces import tail
from launcher.report.live.feed import tail_objects
from launcher.report.model.history import read_history
from launcher.run import asking, event_lines
from launcher.run.files import Damage, append_line, read_lines, read_object, read_thinned
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec
from launcher.run.state import keep_room


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """Whoever waits for a pipe, or reads on and on, is stopped."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it hangs"))
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pipe(path: Path) -> None:
    """A pipe that nobody writes into."""
    os.mkfifo(path)


def zeros(path: Path) -> None:
    """A link to a device that never ends."""
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    """A terabyte that takes no space."""
    with path.open("wb") as f:
        f.truncate(1 << 40)


READERS: dict[str, Callable[[Path], object]] = {
    "object": read_object, "lines": read_lines, "thinned": read_thinned, "tail": tail,
    "tail of objects": tail_objects, "last lines": last_lines, "rows": lambda p: read_rows(p, 0), "events": event_lines.read,
}  # fmt: skip
"""Readers that tolerate everything."""


@pytest.mark.parametrize("plant", [pipe, zeros, sparse])
@pytest.mark.parametrize("reader", READERS)
def test_no_reader_of_a_run_waits_or_reads_without_end(
    tmp_path: Path, plant: Callable[[Path], None], reader: str
) -> None:
    """Nothing is read of it, or, of a file with holes, a bounded part, within seconds."""
    path = tmp_path / "events.jsonl"
    plant(path)
    began = time.monotonic()

    found = READERS[reader](path)

    assert time.monotonic() - began < 30
    assert found is None or sum(len(str(one)) for one in found) < 1 << 24  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("plant", "why"), [(pipe, "it is not a regular file"), (zeros, "it is a link"), (sparse, "it is larger than")]
)
def test_the_damage_is_named(tmp_path: Path, plant: Callable[[Path], None], why: str) -> None:
    """A report says of which file nothing was read, and why."""
    paths = RunPaths(tmp_path)
    for file in (paths.state, paths.outcome, paths.submission, paths.spec, paths.events):
        plant(file)

    damage = read_history(paths).damage

    assert {d.file for d in damage} == {"state.json", "outcome.json", "submission.json", "spec.json", "events.jsonl"}
    assert all(d.why.startswith(why) for d in damage), damage


@pytest.mark.parametrize("plant", [pipe, zeros])
def test_whoever_decides_by_a_file_is_refused_at_once(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    """It is an error, no missing file, and no try is made again for five minutes."""
    plant(tmp_path / "spec.json")

    for look in (asking.load_object, asking.load_lines):
        with pytest.raises(UnfitFileError):
            asking.patiently(lambda look=look: look(tmp_path / "spec.json", tmp_path), tmp_path)  # type: ignore[misc]
    with pytest.raises(OSError, match=r"regular|link"):
        RunSpec.read(tmp_path / "spec.json")


def test_a_file_that_has_grown_too_large_is_named(tmp_path: Path) -> None:
    """One byte above the bound is too much; at the bound everything is read."""
    path = tmp_path / "state.json"
    path.write_bytes(b"x" * 1000)

    assert read_whole(path, 1000) == b"x" * 1000
    with pytest.raises(UnfitFileError, match="larger than 999 bytes"):
        read_whole(path, 999)


def test_long_lines_are_read_up_to_a_bound(tmp_path: Path) -> None:
    """A file of lines that is one line of zeros is told as lines that cannot be read."""
    path = tmp_path / "metrics.jsonl"
    with path.open("wb") as f:
        f.write(b'{"step": 1}\n')
        f.truncate(1 << 33)
        f.seek(0, os.SEEK_END)
        f.write(b'\n{"step": 2}\n')
    damage: list[Damage] = []

    found = read_thinned(path, damage)

    assert found[-1] == {"step": 2}
    assert damage


def test_a_history_of_tiny_lines_is_not_read(tmp_path: Path) -> None:
    """Of `{}` a hundred times as much memory would be made."""
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"{}\n" * 2_000_001)
    damage: list[Damage] = []

    assert read_lines(path, damage) == []
    assert damage[0].why == "it has more than 2,000,000 lines"


def _treasure(tmp_path: Path) -> Path:
    treasure = tmp_path / "authorized_keys"
    treasure.write_text("mine\n")
    return treasure


WRITERS: dict[str, Callable[[Path], object]] = {
    "append_line": lambda p: append_line(p, {"type": "x"}),
    "open_to_append": lambda p: os.close(open_to_append(p, 0o600)),
    "open_log": lambda p: os.close(open_log(p, share="none")),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_no_writer_follows_a_planted_link(tmp_path: Path, writer: str) -> None:
    """What the link leads to is as it was, and is not made where it was not there."""
    log = tmp_path / "run" / "logs" / "attempt-0" / "round-0" / "rank-00000.log"
    log.parent.mkdir(parents=True)
    treasure, missing = _treasure(tmp_path), tmp_path / "missing"

    for target in (treasure, missing):
        log.unlink(missing_ok=True)
        log.symlink_to(target)
        with pytest.raises(UnfitFileError, match="it is a link"):
            WRITERS[writer](log)

    assert treasure.read_text() == "mine\n"
    assert not missing.exists()


@pytest.mark.parametrize("writer", WRITERS)
def test_no_writer_fills_a_pipe(tmp_path: Path, writer: str) -> None:
    """Whether somebody reads from it or not."""
    log = tmp_path / "run" / "logs" / "attempt-0" / "round-0" / "rank-00000.log"
    log.parent.mkdir(parents=True)
    pipe(log)

    with pytest.raises(UnfitFileError):
        WRITERS[writer](log)
    reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(UnfitFileError):
        WRITERS[writer](log)
    os.close(reader)


def test_the_room_for_the_outcome_is_not_made_elsewhere(tmp_path: Path) -> None:
    """A link to a place that does not exist yet is left alone."""
    paths = RunPaths(tmp_path / "run")
    paths.root.mkdir()
    paths.room.symlink_to(tmp_path / "made_by_link")

    keep_room(paths)

    assert not (tmp_path / "made_by_link").exists()


def test_a_log_is_opened_as_other_programs_expect_it(tmp_path: Path) -> None:
    """Its descriptor is a worker's output: writes wait."""
    fd = open_to_append(tmp_path / "log", 0o600)
    try:
        assert os.get_blocking(fd)
        os.write(fd, json.dumps({}).encode())
    finally:
        os.close(fd)
