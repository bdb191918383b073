"""`launcher resubmit` with other numbers of nodes and in another partition, on the real cluster, within one epoch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from cluster import Cluster
from harness import submit

STEPS = 100
"""Of the epoch: at 0.3 s each, three commands come in time also on a slow machine."""
SIZES = (
    ["resources.nodes=3"],
    ["resources.nodes=2", "slurm.partition=high"],
    ["resources.nodes=3", "resources.tasks_per_node=2"],
)


@pytest.mark.long
def test_four_three_two_six_ranks_on_the_cluster(clean: Cluster, tmp_path: Path) -> None:
    """4 hosts, 3, 2 in another partition, then 6 ranks on 3: agreed stops between, every sample of the epoch once."""
    environment = {**os.environ, **clean.env, "LAUNCHER_RUNS_DIR": str(tmp_path / "runs")}
    environment["XDG_STATE_HOME"] = str(tmp_path / "state")

    def verb(*words: str) -> None:
        command = [sys.executable, "-m", "launcher", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    params = {"rows": STEPS * 12, "step_s": 0.3, "seen": str(tmp_path / "seen")}
    hosts = {"nodes": 4, "tasks_per_node": 1}
    run = submit(tmp_path, clean.env, 4, task="ledger:Ledger", params=params, resources=hosts)
    step, partitions = 1, [clean.job(run.job_id)["Partition"]]
    for number, changes in enumerate(SIZES):
        run.wait_step(step + 2)
        verb("cancel", run.paths.id, "--save")
        assert run.wait_end()["state"] == "cancelled"
        run.wait_no_process()
        step = run.outcome()["step"]
        pace = ["params.step_s=0"] if number + 1 == len(SIZES) else []
        verb("resubmit", run.paths.id, *changes, *pace)
        partitions.append(clean.job(run.job_id)["Partition"])
    assert step < STEPS
    assert run.wait_end()["state"] == "completed"

    met = Counter(int(line.split()[1]) for file in tmp_path.glob("seen.*") for line in file.read_text().splitlines())
    assert met == Counter(range(STEPS * 12))
    assert run.outcome()["step"] == STEPS
    assert partitions[:3] == ["batch", "batch", "high"]
    assert [len(e["ranks"]) for e in run.told("round_started")] == [4, 3, 2, 6]
    run.wait_no_process()
