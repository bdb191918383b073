"""A sweep on a real SLURM, from its submission to the second try of what failed; and the ends of some and all of it."""

from __future__ import annotations

import json

import pytest
from login import LIMIT_S, Login

from launcher.run.paths import RunPaths
from launcher.run.state import read_outcome
from launcher.submission.sweeps.points import points_of

pytestmark = pytest.mark.slurm

CODE = """
import time
from pathlib import Path

def train(worker, lr, seed, broken, seconds=0.0):
    for step in range(3):
        worker.step(loss=lr + seed / 100 + 1 / (step + 1))
        if [lr, seed] in broken:
            raise ValueError(f"lr {lr} explodes")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)
        worker.step(loss=0.0)
"""
JOB = {
    "name": "net", "function": "net:train", "preflight": False, "checkpoint": {"enabled": False},
    "params": {"lr": 0.1, "seed": 0, "broken": []}, "restart": {"max_restarts": 0}, "resources": {"timeout_min": 10},
}  # fmt: skip
SWEEP = ("--sweep", "params.lr=0.1,0.01", "--sweep", "params.seed=range(3)")


@pytest.fixture
def sweep(place: Login) -> Login:
    """The code and the job."""
    (place.folder / "net.py").write_text(CODE)
    (place.folder / "net.yaml").write_text(json.dumps(JOB))
    return place


def state(paths: RunPaths) -> str:
    """How a run ended."""
    return str((read_outcome(paths.outcome) or {}).get("state"))


def arrays(place: Login, points: list[RunPaths]) -> list[str]:
    """The SLURM job of each point."""
    return [place.job_id(p).partition("_")[0] for p in points]


def test_two_of_six_points_fail_and_are_tried_again(sweep: Login) -> None:
    """Above MaxArraySize it is two arrays; the failed points are named, told why, and submitted again as one array.

    Colleagues who may enter the sweep (share: group) may enter what the second submission made, too.
    """
    sweep.cluster.set(MaxArraySize=4)
    broken = "params.broken=[[0.1, 1], [0.01, 2]]"
    done = sweep.launcher("submit", "net.yaml", broken, "share=group", *SWEEP, "--wait", ok=False)
    root = sweep.run("net").root
    points = points_of(root)

    assert (done.returncode, len(set(arrays(sweep, points)))) == (8, 2)
    assert f"2 of 6 points did not complete; launcher resubmit --failed {root.name}" in done.stderr
    assert [state(p) for p in points] == ["completed", "failed", "completed", "completed", "completed", "failed"]
    listed = json.loads(sweep.launcher("ls", "--sweep", root.name, "--json").stdout)
    losses = [row["metrics"]["loss"] for row in listed if row["state"] == "completed"]
    assert losses == sorted(losses)
    assert listed[0]["overrides"] == ["params.lr=0.01", "params.seed=0"]
    assert "raised ValueError at step" in sweep.launcher("why", points[1].id).stdout
    told = sweep.launcher("watch", root.name).stdout.splitlines()
    assert told[-1] == f"{root.name}  6 points: 2 failed, 4 completed"
    page = sweep.launcher("report", points[0].id, points[3].id, "-o", "two.html").stdout
    assert page.startswith("two.html")

    said = sweep.launcher("resubmit", "--failed", root.name, "params.broken=[]", "--wait").stdout

    assert "2 points, SLURM array" in said
    assert [state(p) for p in points] == ["completed"] * 6
    again = [sweep.job_id(points[i]) for i in (1, 5)]
    assert [job.partition("_")[2] for job in again] == ["0", "1"]
    assert len({job.partition("_")[0] for job in again}) == 1
    made = [root / "again-1" / name for name in ("", "index", "lib", "submitit")]
    assert [oct(folder.stat().st_mode & 0o777) for folder in made] == [oct(0o750)] * 4
    assert "has no failed points" in sweep.launcher("resubmit", "--failed", root.name).stdout


def test_one_point_is_cancelled_and_then_all(sweep: Login) -> None:
    """A cancelled point ends alone; cancelling the sweep ends the others, also those that have not started."""
    sweep.launcher("submit", "net.yaml", "params.seconds=600", *SWEEP, "sweep.array_parallelism=2")
    root = sweep.run("net").root
    points = points_of(root)
    sweep.cluster.wait(lambda: all((p.root / "state.json").exists() for p in points[:2]), "two points", limit_s=LIMIT_S)
    assert not (points[2].root / "state.json").exists()
    sweep.launcher("cancel", points[0].id)
    sweep.cluster.wait(lambda: read_outcome(points[0].outcome), "the end of the first point", limit_s=LIMIT_S)
    sweep.cluster.wait((points[2].root / "state.json").exists, "the third point", limit_s=LIMIT_S)

    assert (state(points[0]), read_outcome(points[1].outcome)) == ("cancelled", None)

    sweep.launcher("cancel", root.name)
    sweep.cluster.wait(lambda: all(read_outcome(p.outcome) for p in points), "the end of all", limit_s=LIMIT_S)
    assert [state(p) for p in points] == ["cancelled"] * 6
