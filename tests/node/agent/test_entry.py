"""What an agent tells SLURM: values that are passed by name, and the workers' variables, stay on the nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec, SiteSpec, Work

ROOT = Path(__file__).parents[3]
AGENT = """
import sys
from pathlib import Path
from launcher.node.agent import entry
from launcher.node.allocation import leaderless
from launcher.node.leader.finish import Ending

def submits(allocation):
    allocation.queue_early()
    allocation.hand_back(exclude=(), delay_s=0)
    allocation.ask_for_node(("x",), exclude=())

async def leads(leader, agent, doors):
    if hasattr(agent, "close"):  # of the first node: it has not begun
        agent.close()
    submits(leader.allocation)
    return Ending("requeued", "", 0, stale=True)

async def obeys(agent):
    if sys.argv[3] == "leads":
        agent._search.leads.set()
    else:
        agent._search.lost = "closed"
    return 1

entry.Agent.run = obeys
entry.lead_and_obey = leads
leaderless.act = lambda spec, paths, allocation, **how: submits(allocation)
leaderless._await_turn = lambda allocation, place: True
leaderless._finish_job = lambda *words, **how: None
entry.run_agent(Path(sys.argv[1]), node=int(sys.argv[2]))
"""
TOOLS = {
    "sbatch": 'env >> "$FAKE/seen"; echo "sbatch $*" >> "$FAKE/calls"; echo 99',
    "squeue": "",
    "sdiag": 'echo "sdiag output at Thu ($(date +%s))"',
    "scontrol": r"""[ "$1 $2" = "show job" ] || exit 0
printf 'JobId=7 JobName=x\n   Priority=1\n   JobState=RUNNING Reason=None\n   Requeue=0 Restarts=0 BatchFlag=1 ExitCode=0:0\n'
printf '   RunTime=00:01:00 T\n   StartTime=%s EndTime=%s\n' "$(($(date +%s) - 60))" "$(($(date +%s) + 9000))"
printf '   PreemptTime=None\n   Partition=gpu A\n   NodeList=node1\n'""",
}


@pytest.mark.parametrize(("node", "does"), [(0, "leads"), (1, "leads"), (1, "stands in")])
def test_slurm_gets_no_value_that_is_passed_by_name(tmp_path: Path, node: int, does: str) -> None:
    """sbatch stores its environment with the job, sites in their accounting, too. A variable that the site set for all jobs is there."""
    tools, paths = tmp_path / "bin", RunPaths(tmp_path / "run")
    tools.mkdir()
    for name, text in TOOLS.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    paths.submitit.mkdir(parents=True)
    RunSpec(
        id="r", name="r", run_dir=str(paths.root), work=Work(kind="task", target="m:C"), batch="slurm", nodes=2,
        tasks_per_node=1, timeout_min=5, backend="gloo", port_range=[20000, 20031], replace=True,
        site=SiteSpec(requeue_allowed=False), variables={"OF_WORKERS": "1"},
    ).write(paths.spec)  # fmt: skip
    paths.secret.write_text("5a" * 32)
    paths.passed.write_text(json.dumps({"WANDB_API_KEY": "hunter2"}))
    paths.passed.chmod(0o600)
    (paths.submitit / "7_submitted.pkl").touch()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    environ |= {
        "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "FAKE": str(tmp_path), "SLURM_JOB_ID": "7",
        "SLURM_NODEID": str(node), "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_NAME": "r", "SBATCH_ACCOUNT": "lab",
    }  # fmt: skip

    words = [sys.executable, "-c", AGENT, str(paths.root), str(node), does]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False, timeout=120)

    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "calls").read_text().splitlines()) == 3
    seen = (tmp_path / "seen").read_text().splitlines()
    assert seen.count("SBATCH_ACCOUNT=lab") == 3
    assert not [line for line in seen if "hunter2" in line or line.startswith("OF_WORKERS=")]
