"""Jobs of the proof: submitted with the launcher's own command on this machine, watched through their files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from machine import NVML_CHECK

from launcher.run.files import read_lines
from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome, read_state
from launcher.training.checkpoint.checkpoint_digest import digest_checkpoint

ROOT = Path(__file__).resolve().parents[2]
JOBS = Path(__file__).parent / "job"
PATIENCE_S = 150.0


class Run:
    """One run on this machine."""

    def __init__(self, folder: Path, label: str, job: dict[str, Any]) -> None:
        self.home = folder / label
        self.home.mkdir(parents=True)
        (self.home / "job.yaml").write_text(json.dumps({"name": label, **job}))  # JSON is YAML
        self._runs = self.home / "runs"
        self.command("submit", "job.yaml", "--backend", "local")
        (root,) = (path for path in self._runs.iterdir() if path.is_dir() and not path.name.startswith("."))
        self.paths = RunPaths(root)

    @property
    def environment(self) -> dict[str, str]:
        """Of the launcher's commands: runs and their index are in a folder of their own."""
        own = {name: value for name, value in os.environ.items() if name != NVML_CHECK}  # this process's alone
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        here = {"LAUNCHER_RUNS_DIR": str(self._runs), "XDG_STATE_HOME": str(self.home / "state"), "PYTHONPATH": path}
        return {**own, **here}

    def command(self, *words: str, check: bool = True) -> str:
        """Run ``launcher``; return what it printed."""
        line = [sys.executable, "-m", "launcher", *words]
        done = subprocess.run(
            line, cwd=self.home, env=self.environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        if check and done.returncode:
            raise RuntimeError(f"launcher {' '.join(words)}: exit code {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def events(self, *types: str) -> list[dict[str, Any]]:
        """The events of these types, or all."""
        return [e for e in read_lines(self.paths.events) if not types or e["type"] in types]

    def state(self) -> dict[str, Any]:
        """The leader's latest picture."""
        return read_state(self.paths.state)

    def until(self, what: str, condition: Callable[[], Any], limit_s: float = PATIENCE_S) -> Any:
        """Wait until ``condition`` holds. Raises RuntimeError with the end of the history."""
        end = time.monotonic() + limit_s
        while not (found := condition()):
            if time.monotonic() > end:
                raise RuntimeError(f"{what}: not within {limit_s:.0f} s; {self.events()[-5:]} {self.logs()}")
            time.sleep(0.02)
        return found

    def until_step(self, step: int, round_: int = 0) -> None:
        """Wait until a round has done ``step``."""

        def there() -> bool:
            state = self.state()
            self._not_over()
            return state.get("round") == round_ and (state.get("step") or 0) >= step

        self.until(f"step {step} of round {round_}", there)

    def until_saved(self, count: int) -> None:
        """Wait until so many checkpoints are complete."""
        self.until(f"{count} checkpoints", lambda: self._not_over() or len(self.events("saved")) >= count)

    def _not_over(self) -> None:
        outcome = read_outcome(self.paths.outcome)
        if outcome is not None and outcome.get("state") != "completed":
            raise RuntimeError(f"the run has ended: {outcome}")

    def end(self, state: str = "completed") -> dict[str, Any]:
        """Wait for the outcome, which has to be ``state``; then until its processes are gone."""
        outcome: dict[str, Any] = self.until("the end", lambda: read_outcome(self.paths.outcome))
        self.until("its processes to be gone", lambda: not self.processes())
        if outcome["state"] != state:
            raise RuntimeError(f"it ended as {outcome['state']}: {outcome.get('reason')} {self.logs()}")
        return outcome

    def processes(self) -> list[psutil.Process]:
        """Every process of this run."""
        mark, found = str(self.paths.root), []
        for process in psutil.process_iter():
            try:
                if mark in " ".join(process.cmdline()) or process.environ().get("LAUNCHER_RUN_DIR") == mark:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def pid(self, rank: int) -> int:
        """The process of a rank in the present round."""

        def row() -> Any:
            ranks = self.state().get("ranks", [])
            return next((r["pid"] for r in ranks if r["rank"] == rank and r.get("pid") and r["phase"] != "ended"), None)

        return int(self.until(f"rank {rank}", row))

    def kill(self, rank: int) -> float:
        """``kill -9`` of a rank; return when."""
        pid = self.pid(rank)
        when = time.time()
        os.kill(pid, signal.SIGKILL)
        return when

    def logs(self) -> str:
        """The last lines of the ranks' logs."""
        logs = sorted(self.paths.logs.glob("attempt-*/round-*/rank-*.log"))[-2:]
        return "\n".join(line for log in logs for line in log.read_text(errors="replace").splitlines()[-8:])

    def checkpoint(self) -> Path:
        """The newest checkpoint."""
        return Path(self.events("saved")[-1]["path"])

    def digest(self) -> dict[str, str]:
        """One digest for each part of the newest checkpoint."""
        return digest_checkpoint(self.paths.root / self.checkpoint())

    def why(self) -> str:
        """The first line of ``launcher why``."""
        return self.command("why", self.paths.root.name, check=False).splitlines()[0]

    def discard(self) -> None:
        """End what is left of it."""
        for process in self.processes():
            try:
                process.kill()
            except psutil.Error:
                continue
