"""`launcher logs` on logs as they are: gigabytes, no UTF-8, no last newline."""

from __future__ import annotations

import io
import json
import random
import resource
import sys
import time
from pathlib import Path

import pytest

from launcher.cli import logs
from launcher.cli.main import main
from launcher.errors import RunDirError


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where rank 0 of the only run writes."""
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = tmp_path / "resnet50-1121-0842-k7f"
    path = run / "logs" / "attempt-0" / "round-0" / "rank-00000.log"
    path.parent.mkdir(parents=True)
    (run / "spec.json").write_text("{}")
    return path


def test_the_last_lines_are_the_last_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the blocks that are read backwards happen to cut: as `tail -n` would say."""
    choose = random.Random(7)
    monkeypatch.setattr(logs, "_BLOCK", 5)
    for _ in range(500):
        text = b"".join(choose.choice([b"\n", b"ab\n", b"long line", b"\xff\xc3"]) for _ in range(choose.randrange(12)))
        count = choose.randrange(5)
        f = io.BytesIO(text)
        begin = logs._begin_of_last(f, len(text), count)
        assert text[begin:] == b"".join(text.splitlines(keepends=True)[-count:] if count else []), (text, count)


def test_two_gigabytes_are_not_read_for_ten_lines(log: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """-n costs what it prints, however long the log has become."""
    with log.open("wb") as f:
        f.truncate(2 << 30)
        f.seek(0, 2)
        f.write(b"\n" + b"".join(b"step %d\n" % i for i in range(1000)))
    before = resource.getrusage(resource.RUSAGE_SELF)
    assert main(["logs", "k7f", "-n", "10"]) == 0
    after = resource.getrusage(resource.RUSAGE_SELF)

    assert capfdbinary.readouterr().out == b"".join(b"step %d\n" % i for i in range(990, 1000))
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0
    assert after.ru_maxrss - before.ru_maxrss < 100_000  # kB


def test_a_log_that_cannot_be_read_is_an_error(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing was printed, so the exit code is that of a folder that cannot be read; of agents' logs the others are printed."""
    log.mkdir()
    assert main(["logs", "k7f"]) == RunDirError.exit_code
    assert capsys.readouterr().err == f"launcher: {log}: Is a directory\n"

    jobs = log.parents[3] / "submitit"
    (jobs / "7_0_log.out").mkdir(parents=True)
    (jobs / "7_1_log.out").write_text("begun\n")
    assert main(["logs", "k7f", "--agents"]) == 0
    told = capsys.readouterr()
    assert "begun" in told.out
    assert "Is a directory" in told.err


def test_bytes_pass_as_they_are(log: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """A log in another encoding, or with binary rubbish in it, comes out byte for byte."""
    data = b"caf\xe9 \xff\xfe\x00 half \xc3"
    log.write_bytes(data)
    assert main(["logs", "k7f"]) == 0
    sys.stdout.flush()

    assert capfdbinary.readouterr().out == data


def test_a_line_without_an_end_is_told_in_parts(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In JSON, where a line is an object: time and memory grow with the log, not with its square."""
    log.write_bytes(b"a\nb" + b"x" * (40 << 20) + b"\nc\nd")
    began = time.process_time()

    assert main(["logs", "resnet50", "--json"]) == 0

    lines = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    assert "".join(lines) == "ab" + "x" * (40 << 20) + "cd"
    assert (lines[0], lines[-2:]) == ("a", ["c", "d"])
    assert max(map(len, lines)) <= 3 << 20
    assert time.process_time() - began < 20
