"""A hold of two nodes on the cluster, and the commands of its user."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cluster import Cluster
from harness import Run, job_text

WORLD = 2
LIMIT_S = 300


class Held:
    """A hold of two nodes, and the commands of its user."""

    def __init__(self, cluster: Cluster, folder: Path, **job: object) -> None:
        self.cluster, self.folder = cluster, folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "job.yaml").write_text(job_text(WORLD, **job))
        self.env = {"LAUNCHER_RUNS_DIR": str(folder / "runs"), "XDG_STATE_HOME": str(folder / "state")}
        said = self.launcher("hold", "job.yaml")
        assert said.returncode == 0, said.stdout + said.stderr
        self.hold = Run(next((folder / "runs").iterdir()))

    def launcher(self, *words: str) -> subprocess.CompletedProcess[str]:
        """One command on the login host."""
        env = {**self.cluster.env, **self.env}
        return subprocess.run(
            [sys.executable, "-m", "launcher", *words], env=env, cwd=self.folder, capture_output=True, text=True,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip

    def rerun(self, *words: str) -> tuple[Run, subprocess.CompletedProcess[str]]:
        """Run the job in the hold; the new run, and what the command said."""
        before = set((self.folder / "runs").iterdir())
        said = self.launcher("rerun", self.hold.paths.id, *words)
        (new,) = set((self.folder / "runs").iterdir()) - before
        return Run(new), said

    def begun(self, *words: str) -> Run:
        """A rerun that has saved once and goes on."""
        run, said = self.rerun("--detach", "params.step_s=0.2", "params.epochs=200", *words)
        assert said.returncode == 0, said.stdout + said.stderr
        run.wait_saved(1)
        return run
