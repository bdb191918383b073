"""Facts about chains on a real SLURM: a run starts after another has *finally* ended, and never when it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from harness import Run
from inflict import lose_agent

LIMIT_S = 240
WAITS = "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists():\n    time.sleep(0.1)\n"


class Place:
    """A folder with small jobs, where `launcher` is called as a user would."""

    def __init__(self, folder: Path, environment: dict[str, str], backend: str) -> None:
        self.folder, self.backend = folder, backend
        state = {"XDG_STATE_HOME": str(folder / "state"), "LAUNCHER_RUNS_DIR": str(folder / "runs")}
        self.env = {k: v for k, v in {**environment, **state}.items() if k not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
        (folder / "quick.py").write_text("print('here', flush=True)\n")
        (folder / "fail.py").write_text("raise SystemExit(3)\n")
        (folder / "waits.py").write_text(WAITS)

    def launcher(self, *words: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
        """One call of the command."""
        done = subprocess.run(
            [sys.executable, "-m", "launcher", *words], env=self.env, cwd=self.folder, capture_output=True, text=True,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0 or not ok, done.stdout + done.stderr
        return done

    def submit(self, name: str, script: str, **job: Any) -> Run:
        """Submit one small job called ``name``."""
        values = {"name": name, "script": script, "preflight": False, "resources": {"timeout_min": 10}, **job}
        (self.folder / f"{name}.yaml").write_text(json.dumps(values))
        self.launcher("submit", f"{name}.yaml", "--backend", self.backend)
        return self.run(name)

    def run(self, name: str) -> Run:
        """The run of that name."""
        (found,) = (self.folder / "runs").glob(f"{name}-*")
        return Run(found)

    def why(self, run: Run) -> str:
        """The first line of ``launcher why``."""
        return self.launcher("why", run.paths.id).stdout.splitlines()[0]


@pytest.mark.long
@pytest.mark.slurm
@pytest.mark.parametrize("requeue", [1, 0])
def test_coming_back_is_no_end(cluster: Cluster, tmp_path: Path, requeue: int) -> None:
    """The leader of A dies by SIGKILL, for good, and A comes back, as itself or as another job: nobody who waits for A starts.

    When A completes, those start that wait for its success or its end; the one that waits for its failure is taken away,
    and ``why`` says so.
    """
    cluster.set(JobRequeue=requeue)
    place = Place(tmp_path, cluster.env, "slurm")
    first = place.submit("a", "waits.py", args=[str(tmp_path / "go")])
    waiting = {kind: place.submit(kind, "quick.py", after={kind: [first.paths.id]}) for kind in ("ok", "any", "fails")}
    first.wait("the first round", lambda: first.told("round_started"))
    leader = first.told("attempt_started")[0]
    lose_agent(first, 0)
    first.wait(
        "the second attempt", lambda: len(first.told("attempt_started")) > 1 and first.told("round_started", attempt=1)
    )
    now = first.told("attempt_started")[1]["job_id"]
    assert (now == leader["job_id"]) == bool(requeue)
    time.sleep(3)  # the scheduler looks at dependencies every second here
    jobs = {kind: cluster.job(run.job_id) for kind, run in waiting.items()}
    assert {("PENDING", f":{now}(unfulfilled)" in job["Dependency"]) for job in jobs.values()} == {("PENDING", True)}, (
        jobs
    )
    (tmp_path / "go").touch()

    assert "completed" == first.wait_end()["state"]
    assert ["completed", "completed"] == [waiting[kind].wait_end()["state"] for kind in ("ok", "any")]
    waiting["fails"].wait("why", lambda: "never started" in place.why(waiting["fails"]))
    assert cluster.job(waiting["fails"].job_id).get("JobState", "CANCELLED") == "CANCELLED"
    assert f"It never started: {first.paths.id}, which had to fail first, completed." == place.why(waiting["fails"])
    cluster.cancel_all()


@pytest.mark.slurm
def test_then_never_starts_after_a_failure(cluster: Cluster, tmp_path: Path) -> None:
    """`A then B` where A fails: SLURM takes B away, ``why`` names A, and a third job that would wait in vain is refused."""
    place = Place(tmp_path, cluster.env, "slurm")
    small = ["preflight=false", "resources.timeout_min=5", "restart.max_restarts=0"]
    place.launcher("submit", "fail.py", *small, "then", "quick.py", *small)
    first, second = place.run("fail"), place.run("quick")
    assert "failed" == first.wait_end()["state"]
    second.wait("why", lambda: "never started" in place.why(second))
    refused = place.launcher("submit", "quick.py", f"after={first.paths.id}", *small, ok=False)

    assert f"It never started: {first.paths.id}, which had to complete first, failed." == place.why(second)
    assert refused.returncode != 0
    assert "the job can never start" in refused.stderr
    assert 1 == len(list((tmp_path / "runs").glob("quick-*")))
    cluster.cancel_all()


def test_chains_work_on_this_machine(tmp_path: Path) -> None:
    """Without SLURM the leader of the later run waits: it starts after success, never after a failure, and says why."""
    place = Place(tmp_path, dict(os.environ), "local")
    for name, script in (("a", "waits.py"), ("b", "quick.py")):
        values = {"name": name, "script": script, "args": [str(tmp_path / "go")], "preflight": False}
        (tmp_path / f"{name}.yaml").write_text(json.dumps(values))
    place.launcher("submit", "a.yaml", "then", "b.yaml", "--backend", "local")
    first, second = place.run("a"), place.run("b")
    never = place.submit("never", "quick.py", after={"fails": [first.paths.id]})
    for run in (second, never):
        run.wait("a leader that waits", lambda run=run: run.told("waiting", runs=[first.paths.id]))
    first.wait("the first round", lambda: first.told("round_started"))
    assert [] == second.told("round_started") + never.told("round_started")
    (tmp_path / "go").touch()

    assert ["completed", "completed", "cancelled"] == [r.wait_end()["state"] for r in (first, second, never)]
    assert first.told("ended")[0]["t"] < second.told("round_started")[0]["t"]
    assert f"It never started: {first.paths.id}, which had to fail first, completed." in place.why(never)
    for run in (first, second, never):
        run.wait_no_process()
