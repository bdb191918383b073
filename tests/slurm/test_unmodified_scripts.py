"""The promise to torchrun's scripts: unmodified, they find under the launcher what torchrun gives them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from harness import Run

SCRIPTS = Path(__file__).parent / "scripts"
LIMIT_S = 600

SAME = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK")
SAME += (
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "OMP_NUM_THREADS",
)
"""Equal to the letter under both; TORCHELASTIC_RUN_ID, MASTER_ADDR and MASTER_PORT are there under both."""

TORCHRUNS_OWN = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}
"""Between torchrun and its own workers (docs/scripts.md, "Differences"): nothing that a script needs."""


def launch(verb: str, script: str, folder: Path, env: dict[str, str], *words: str, args: list[Any] = ()) -> Run:
    """``launcher run|submit SCRIPT key=value ... -- args`` to its end; the run."""
    environment = {
        **os.environ,
        **env,
        "LAUNCHER_RUNS_DIR": str(folder / "runs"),
        "XDG_STATE_HOME": str(folder / "state"),
    }
    command = [sys.executable, "-m", "launcher", verb, str(SCRIPTS / script), *words, "preflight=false"]
    done = subprocess.run(
        [*command, "--", *map(str, args)], env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr + logs(folder)
    (root,) = (p for p in (folder / "runs").iterdir() if p.is_dir() and not p.name.startswith("."))
    return Run(root)


def logs(folder: Path) -> str:
    """What the ranks of every run below ``folder`` printed."""
    return "\n".join(p.read_text() for p in sorted(folder.glob("runs/*/logs/attempt-*/round-*/rank-*.log")))


def shown(text: str) -> list[dict[str, Any]]:
    """What each rank of show_environment.py said, by rank."""
    said = [json.loads(line.partition("SHOWN ")[2]) for line in text.splitlines() if "SHOWN " in line]
    return sorted(said, key=lambda one: int(one["environment"]["RANK"]))


@pytest.fixture(scope="module")
def under_torchrun() -> list[dict[str, Any]]:
    """What four ranks find under torchrun."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, str(SCRIPTS / "show_environment.py"), "--lr", "0.1"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return shown(done.stdout)


def assert_same(found: list[dict[str, Any]], wanted: list[dict[str, Any]], per_node: int = 4) -> None:
    """Each rank of both finds the same variables, arguments, name and sum."""
    assert [one["environment"]["RANK"] for one in found] == ["0", "1", "2", "3"]
    for mine, torchruns in zip(found, wanted, strict=True):
        assert (mine["argv"], mine["name"], mine["sum"]) == (["--lr", "0.1"], "__main__", 4)
        here, there = mine["environment"], torchruns["environment"]
        if per_node == 4:
            assert {k: here.get(k) for k in SAME} == {k: there.get(k) for k in SAME}
        assert set(there) - set(here) <= TORCHRUNS_OWN
        assert {k for k in here if k.startswith("SLURM_") and k in HIDDEN} == set()


HIDDEN = {
    "SLURM_TASKS_PER_NODE",
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NPROCS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_NODEID",
}


def test_a_script_finds_torchruns_environment_under_run(tmp_path: Path, under_torchrun: list[dict[str, Any]]) -> None:
    """Four ranks on this machine: rank, sizes, group, role and OMP threads to the letter as torchrun sets them."""
    run = launch("run", "show_environment.py", tmp_path, {}, "resources.tasks_per_node=4", args=["--lr", 0.1])

    assert run.outcome()["state"] == "completed"
    assert_same(shown(logs(tmp_path)), under_torchrun)


@pytest.mark.slurm
def test_a_script_finds_torchruns_environment_on_the_cluster(
    tmp_path: Path, cluster: Cluster, under_torchrun: list[dict[str, Any]]
) -> None:
    """Two hosts of two: torchrun's variables with each node as a group, and none of SLURM's ranks to be misled by."""
    words = ["--backend", "slurm", "--wait", "resources.nodes=2", "resources.tasks_per_node=2"]

    launch("submit", "show_environment.py", tmp_path, cluster.env, *words, args=["--lr", 0.1])

    found = shown(logs(tmp_path))
    assert_same(found, under_torchrun, per_node=2)
    kept = ("LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE")
    assert [[one["environment"][k] for k in kept] for one in found] == [
        ["0", "0", "2", "4", "2"],
        ["1", "0", "2", "4", "2"],
        ["0", "1", "2", "4", "2"],
        ["1", "1", "2", "4", "2"],
    ]


def idioms(text: str) -> list[Any]:
    """What each rank of idioms.py said, in an order of its own."""
    return sorted(json.loads(line.partition("IDIOM ")[2]) for line in text.splitlines() if "IDIOM [" in line)


@pytest.mark.long
def test_what_torchruns_users_write_works_the_same(tmp_path: Path) -> None:
    """Own stores and groups, mp.spawn, loaders that spawn, torchrun inside, stdin, exit functions: the same under both."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")} | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, str(SCRIPTS / "idioms.py")],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    launch("run", "idioms.py", tmp_path, {}, "resources.tasks_per_node=2")
    found = idioms(logs(tmp_path))

    assert found == idioms(done.stdout)
    assert [0, "torchrun inside", [0, "inner 0 of 1: 1"]] in found
    assert len(found) == 2 * 8 + 3


@pytest.mark.slurm
@pytest.mark.parametrize(("script", "word"), [("lightning_fit.py", "LIGHTNING"), ("accelerate_fit.py", "ACCELERATE")])
def test_scripts_of_other_libraries_on_two_hosts(tmp_path: Path, cluster: Cluster, script: str, word: str) -> None:
    """A Lightning and an Accelerate script, unmodified, two hosts of two: world size 4, not SLURM's two tasks."""
    words = ["--backend", "slurm", "--wait", "resources.nodes=2", "resources.tasks_per_node=2"]

    launch("submit", script, tmp_path, cluster.env, *words, args=[2, 2])

    said = re.findall(rf"{word} rank (\d) of (\d) on (\S+): (\d+) steps", logs(tmp_path))
    assert sorted((rank, size, steps) for rank, size, _, steps in said) == [(str(r), "4", "2") for r in range(4)]
    assert len({host for _, _, host, _ in said}) == 2
