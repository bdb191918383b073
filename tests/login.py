"""A user on the login host of a real cluster: a folder with code, and `launcher` called in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from cluster import Cluster

from launcher.run.paths import RunPaths

LIMIT_S = 600


class Login:
    """A folder with a job's code, where `launcher` is called as a user would."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder = folder
        self.cluster = cluster
        self.runs = folder / "runs"
        (folder / "train.py").write_text("import sys\nprint('said', sys.argv[1:], flush=True)\n")
        (folder / "fail.py").write_text("raise SystemExit(3)\n")

    def launcher(self, *words: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
        """One call of the command on the login host."""
        env = {**self.cluster.env, "XDG_STATE_HOME": str(self.folder / "state"), "LAUNCHER_RUNS_DIR": str(self.runs)}
        env = {k: v for k, v in env.items() if k not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
        done = subprocess.run(
            [sys.executable, "-m", "launcher", *words], env=env, cwd=self.folder, capture_output=True, text=True,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0 or not ok, done.stdout + done.stderr
        return done

    def run(self, name: str) -> RunPaths:
        """The newest run (or sweep) of that job."""
        found = sorted(self.runs.glob(f"{name}-*"), key=lambda p: p.stat().st_mtime)
        return RunPaths(found[-1])

    def job_id(self, paths: RunPaths) -> str:
        """Its job's id."""
        return str(json.loads(paths.submission.read_text())["job_id"])
