"""Completion in the shells themselves: a key press of Tab in an interactive bash, zsh and fish."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

import pytest

RUN = "resnet50-1121-0842-k7f"
LIMIT_S = 60.0
START = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(launcher completion bash)"'),
    "zsh": (["zsh", "-f", "-i"], 'autoload -U compinit; compinit -D -u; eval "$(launcher completion zsh)"'),
    "fish": (["fish", "--no-config", "-i"], "launcher completion fish | source"),
}


class Shell:
    """An interactive shell in a pseudo-terminal."""

    def __init__(self, words: list[str], home: Path) -> None:
        bin_ = Path(sys.executable).parent
        env = {"HOME": str(home), "PATH": f"{bin_}:{os.environ['PATH']}", "TERM": "xterm", "LC_ALL": "C.UTF-8", "PS1": "$ ",
               "LAUNCHER_RUNS_DIR": str(home / "runs"), "XDG_STATE_HOME": str(home), "XDG_DATA_HOME": str(home),
               "PYTHONPATH": str(Path(__file__).parents[2])}  # fmt: skip
        self.own, other = pty.openpty()
        self.process = subprocess.Popen(
            words, stdin=other, stdout=other, stderr=other, env=env, cwd=home, start_new_session=True,
            preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0),  # fish leaves without a terminal that controls it
        )  # fmt: skip
        os.close(other)
        self.said, self.presses = "", 0

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self.own, text.encode())

    def wait_for(self, pattern: str) -> None:
        """Wait until it has said this; raises AssertionError after a minute."""
        assert self.says(pattern, LIMIT_S), f"{pattern!r} did not come: {self.said[-2000:]!r}"

    def says(self, pattern: str, within_s: float) -> bool:
        """Whether it says this in time; what it has said up to there is done with."""
        end = time.monotonic() + within_s
        while not (found := re.search(pattern, self.said)):
            ready, _, _ = select.select([self.own], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                return False
            try:
                raw = os.read(self.own, 65536).decode(errors="replace")
            except OSError:
                raise AssertionError(f"the shell ended: {self.said[-2000:]!r}") from None
            if "\x1b[c" in raw or "\x1b[0c" in raw:
                self.type("\x1b[?62;c")  # fish asks what terminal this is and waits for the answer
            self.said = re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]", "", self.said + raw)  # zsh underlines what it added
        self.said = self.said[found.end() :]
        return True

    def interrupt(self) -> None:
        """Press Ctrl-C until it takes commands again: while it is being interrupted, it may drop what is typed."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            self.presses += 1
            self.type("\x03")
            time.sleep(0.5)
            self.type(f"echo do''ne{self.presses}.\n")
            if self.says(rf"done{self.presses}\.", 5.0):
                return
        raise AssertionError(f"it takes no commands any more: {self.said[-2000:]!r}")

    def close(self) -> None:
        """End it."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.own)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with two runs."""
    for name in (RUN, "llama-1121-0900-m3x"):
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        (run / "spec.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("name", START)
def test_tab_completes_verbs_and_runs(name: str, home: Path) -> None:
    """`launcher sta<Tab>` becomes status, `launcher status resnet50-<Tab>` the run's whole name, an option its name."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed here")
    words, setup = START[name]
    shell = Shell(words, home)
    try:
        shell.type(f"{setup}; echo rea''dy\n")
        shell.wait_for("ready")
        shell.type("launcher stat\t")
        shell.wait_for("us ")
        shell.type("resnet50-\t")
        shell.wait_for(re.escape(RUN[len("resnet50-") :]))
        shell.type("--js\t")
        shell.wait_for("on")
    finally:
        shell.close()


@pytest.mark.parametrize("name", START)
def test_tab_and_return_run_nothing_that_a_folder_is_called(name: str, home: Path) -> None:
    """A stranger's folder among the runs, called $(command): Tab does not put it into the line, so Return does not run it."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed here")
    words, setup = START[name]
    (home / "runs" / "evil$(touch${IFS}pwned)-1121-0842-k7f").mkdir()
    (home / "runs" / "evil`touch${IFS}pwned`-1121-0842-k7g").mkdir()
    shell = Shell(words, home)
    try:
        shell.type(f"{setup}; echo rea''dy\n")
        shell.wait_for("ready")
        for start in ("evil\t", "evil$\t"):
            shell.type(f"launcher status {start}")
            time.sleep(2.0)  # the completion is computed by a command of ours
            shell.type("\n")
            time.sleep(1.0)
            shell.interrupt()
    finally:
        shell.close()

    assert not (home / "pwned").exists()
