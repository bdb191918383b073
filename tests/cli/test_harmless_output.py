"""What a run, a log or an error text holds does not steer the terminal that shows it."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest
from an_event import an_event
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from launcher.cli import _terminal
from launcher.cli._terminal import HarmlessStream, LogStream, harmless
from launcher.cli.main import main
from launcher.run import event_lines
from launcher.run.paths import RunPaths

TITLE, CURSOR, BIDI, C1 = "\x1b]0;owned\x07", "\x1b[2J\x1b[1;1H", "\u202eexe.gnp\u2066", "\x9b2J\x90q\x9c"
EVIL = f"{TITLE}{CURSOR}{BIDI}{C1}\r\b\x00\x7f"


def steers(text: str) -> list[str]:
    """What of a text would steer a terminal: all controls but line ends, tabs, bold and the plain colours."""
    for code in ("0", "1", *(f"3{n}" for n in range(1, 8))):
        text = text.replace(f"\x1b[{code}m", "")
    return [c for c in text if not c.isprintable() and c not in "\n\t"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """A run that failed, with a hostile text in every place that is shown."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    monkeypatch.chdir(tmp_path)
    paths = RunPaths(tmp_path / "runs" / "net-1121-0842-k7f")  # a folder of another name is no run's
    paths.root.mkdir(parents=True)
    paths.spec.write_text(json.dumps({"version": 1, "name": EVIL, "batch": "slurm"}))
    cause = {"kind": "exception", "exception": EVIL, "message": EVIL, "text": EVIL, "last_lines": [EVIL],
             "frames": [{"file": EVIL, "line": 1, "function": EVIL, "code": EVIL}], "caused_by": [EVIL]}  # fmt: skip
    t = {"t": 1.79e9}
    for event in (
        {"type": "submitted", "attempt": None, "job_id": "42", "backend": "slurm", "by": "submit", "changes": [EVIL]},
        {"type": "attempt_started", "attempt": 0, "job_id": "42", "host": EVIL},
        {"type": "worker_failed", "attempt": 0, "round": 0, "rank": 0, "host": EVIL, "step": 3, "cause": cause},
        {"type": "excluded", "attempt": 0, "hosts": [EVIL], "why": EVIL},
        {"type": "decision", "attempt": 0, "evidence": EVIL, "action": EVIL, "reason": EVIL},
        {"type": EVIL, "attempt": 0},
        {"type": "ended", "attempt": 0, "state": "failed", "reason": EVIL, "step": 3},
    ):
        with paths.events.open("a") as f:
            f.write(json.dumps({**t, **event}) + "\n")
    metrics = {EVIL: EVIL, "loss": EVIL}
    paths.outcome.write_text(
        json.dumps({**t, "state": "failed", "reason": EVIL, "step": 3, "attempt": 0, "metrics": metrics})
    )
    paths.state.write_text(json.dumps({**t, "attempt": 0, "nodes": [EVIL], "metrics": metrics, "phase": EVIL}))
    log = paths.rank_log(0, 0, 0)
    log.parent.mkdir(parents=True)
    log.write_text(f"{EVIL}\n")
    return paths


@pytest.mark.parametrize("words", [["ls"], ["status", "@last"], ["why", "@last"], ["watch", "@last"], ["nodes"], ["cancel", "@last"],
                                   ["resubmit", "@last"], ["status", EVIL], ["logs", "@last", "--json"], ["ls", "--json"],
                                   ["plan", EVIL.replace("\0", "")], [EVIL]], ids=lambda words: words[0][:5].strip("\x1b"))  # fmt: skip
def test_no_verb_sends_on_what_a_run_holds(run: RunPaths, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Names, hosts, causes, reasons, metrics, and what the user typed: control characters are written out."""
    main(words)
    said = capsys.readouterr()

    assert steers(said.out + said.err) == []
    assert said.out + said.err


def test_what_is_shown_can_be_read(run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is swallowed: an escape is seen as such."""
    main(["plan", "job\x1b]0;owned\x07.yaml"])

    assert r"job\x1b]0;owned\x07.yaml" in capsys.readouterr().err


def test_the_live_view_shows_a_dot_in_the_place_of_each(run: RunPaths) -> None:
    """Its lines stay as long as they are, so colours keep their places."""
    from launcher.report.live.feed import LiveFeed
    from launcher.report.live.view import View

    view = View(LiveFeed(), stop=lambda paths: "")
    for keys in ([], ["enter"], ["l"]):
        for key in keys:
            view.press(key)
        for line in view.render(100, 24, time.time()):
            shown = Text(harmless(line.plain, "·"))
            assert len(shown.plain) == len(line.plain)
            assert steers(shown.plain) == []


def on_a_terminal(*words: str) -> str:
    """What a terminal gets of the verb."""
    above, below = pty.openpty()
    done = subprocess.Popen([sys.executable, "-m", "launcher", *words], stdin=below, stdout=below, stderr=below)
    os.close(below)
    got = b""
    try:
        while block := os.read(above, 65536):
            got += block
    except OSError:  # EIO: everybody has closed it
        pass
    finally:
        os.close(above)
        done.wait()
    return got.decode(errors="surrogateescape").replace("\r\n", "\n")  # the line discipline's


def test_a_terminal_gets_colours_and_progress_bars_of_a_log(run: RunPaths) -> None:
    """SGR colours and carriage returns pass, in pieces too; what moves the cursor, sets the title or turns the text does not."""
    bar = "\r 10%|█         |\r 20%|██        |"
    run.rank_log(0, 0, 0).write_bytes(f"\x1b[38;5;196mred\x1b[0m {bar}\n{EVIL}\n".encode() + b"\xff\x9b2J end\n")

    said = on_a_terminal("logs", "@last")

    assert f"\x1b[38;5;196mred\x1b[0m {bar}\n" in said
    assert r"\x1b]0;owned\x07\x1b[2J\x1b[1;1H\u202eexe.gnp\u2066\x9b2J\x90q\x9c" in said
    assert r"\xff\x9b2J end" in said
    assert steers(said.replace("\r", "").replace("\x1b[38;5;196m", "")) == []


def test_a_pipe_gets_every_byte_of_a_log(run: RunPaths) -> None:
    """As it is: programs read it."""
    raw = f"{EVIL}\n".encode() + b"\xff\x9b\n"
    run.rank_log(0, 0, 0).write_bytes(raw)

    assert (
        subprocess.run([sys.executable, "-m", "launcher", "logs", "@last"], capture_output=True, check=True).stdout
        == raw
    )


def test_on_a_terminal_the_verbs_own_colours_are_seen(run: RunPaths) -> None:
    """Bold and colours of a verb pass; those of a run's name do not hide anything."""
    said = on_a_terminal("ls")

    assert "\x1b[31mfailed\x1b[0m" in said
    assert steers(said) == []


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(blocks: list[bytes]) -> str:
    """What a terminal gets of a log that is read in these blocks."""
    sent: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_terminal.click, "echo", lambda block, nl: sent.append(block))
        patch.setattr(_terminal.sys, "stdout", _Terminal())
        out = LogStream()
        for block in blocks:
            out.write(block)
        out.close()
    return b"".join(sent).decode()


PIECES = [b"\x1b", b"[31", b"m", b"\xc2", b"\x9b", b"]0;x\x07", b"\xe2\x80", b"\xae", "█".encode(), b"\r"]


@examples(100)
@given(st.lists(st.binary(max_size=6) | st.sampled_from(PIECES)))
def test_however_a_log_is_cut_nothing_steers(blocks: list[bytes]) -> None:
    """Blocks end anywhere, within a colour or a character: the same is printed as of one block, and nothing of it steers."""
    said = printed(blocks)

    assert said == printed([b"".join(blocks)])
    assert not _terminal._UNSAFE.search(_terminal._LOG_STYLE.sub(lambda m: "" if m[1] else m[0], said))


@examples(100)
@given(st.text())
def test_harmless_texts_are_as_they_were(text: str) -> None:
    """What has no control is not changed, and what is written out is harmless."""
    stream = io.StringIO()
    HarmlessStream(stream).write(text)

    assert harmless(harmless(text)) == harmless(text)
    assert not _terminal._UNSAFE.search(harmless(text))
    if not _terminal._UNSAFE.search(text):
        assert harmless(text) == text == stream.getvalue()


def test_events_keep_what_they_hold(run: RunPaths) -> None:
    """Only what is printed is changed: the files and --json have every character."""
    event_lines.append(run.events, an_event("warning", attempt=0, text=EVIL))

    assert event_lines.read(run.events)[-1].raw["text"] == EVIL
