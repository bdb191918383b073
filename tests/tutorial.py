"""Walks through docs/tutorial.md on a cluster: its files, its commands, in its order. The test and the pictures both use it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome, read_state

PAGE = (Path(__file__).parents[1] / "docs" / "tutorial.md").read_text()
PATIENCE_S = 600.0


def block(language: str, number: int = 0) -> str:
    """One of the page's code blocks."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[number]


class Walk:
    """One walk in a folder. ``env`` leads to SLURM's commands."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.folder = folder
        self.env = {
            **env,
            "LAUNCHER_RUNS_DIR": str(folder / "runs"),
            "XDG_STATE_HOME": str(folder / "state"),
            "COLUMNS": "100",
        }
        (folder / "fit.py").write_text(block("python"))
        (folder / "fit.yaml").write_text(block("yaml"))

    def do(self, line: str) -> str:
        """Run one command line of the page; what it printed."""
        assert line in PAGE, f"the tutorial has no line {line}"
        command = line.replace("launcher ", f"{sys.executable} -m launcher ", 1)
        done = subprocess.run(
            command, shell=True, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    @property
    def run(self) -> RunPaths:
        """The submitted run."""
        (root,) = (p for p in (self.folder / "runs").glob("fit-*") if (p / "submission.json").exists())
        return RunPaths(root)

    def wait_step(self, step: int) -> None:
        """Wait until the run has done so many steps."""
        self._wait(lambda: (read_state(self.run.state).get("step") or 0) >= step)

    def wait_end(self) -> dict[str, object]:
        """Wait for the outcome."""
        self._wait(lambda: read_outcome(self.run.outcome) is not None)
        return read_outcome(self.run.outcome) or {}

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.run.events.read_text()[-2000:]
            time.sleep(0.2)
