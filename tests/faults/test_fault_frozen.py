"""What stands still instead of dying, on the real cluster: found, named, and without harm to the result."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import inflict
import psutil
import pytest
from cluster import Cluster
from harness import ONE_HOST, Run, ends_the_same, start, submit

Undisturbed = Callable[[int], str]


def fork_server(run: Run, node: int) -> psutil.Process:
    """The process that a node's workers were forked from."""
    return inflict.agents(run)[node].children()[0]


def why(cluster: Cluster, run: Run) -> dict[str, Any]:
    """What ``launcher why --json`` says."""
    env = {**os.environ, **cluster.env, "LAUNCHER_RUNS_DIR": str(run.paths.root.parent)}
    command = [sys.executable, "-m", "launcher", "why", run.paths.id, "--json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def logs(run: Run) -> dict[int, str]:
    """What every rank of the round that hung wrote."""
    round_ = run.told("hang")[0]["round"]
    return {rank: run.paths.rank_log(0, round_, rank).read_text() for rank in range(3)}


@pytest.mark.parametrize(
    "floor_s", [pytest.param(5.0, marks=pytest.mark.long), 60.0], ids=["small floor", "default floor"]
)
def test_a_frozen_worker(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, floor_s: float) -> None:
    """SIGSTOP: found within seconds whatever the floor, named, every worker's stack in its log, a new round."""
    run = start(clean, tmp_path, resources=ONE_HOST, params={"step_s": 0.1}, restart={"hang_floor_s": floor_s})
    host = run.rank(1)["host"]
    began = time.time()
    inflict.signal_rank(run, 1, signal.SIGSTOP)
    (hang,) = run.wait("the hang", lambda: run.told("hang"))

    assert hang["t"] - began < 20
    assert [(r["rank"], r["host"]) for r in hang["laggards"]] == [(1, host)]
    ends_the_same(run, 3, undisturbed)
    for text in logs(run).values():
        assert "most recent call first" in text
    assert len(run.told("round_started")) == 2
    assert len(run.told("attempt_started")) == 1


HANGS = {"spin": ([1], "spin"), "lock": ([1], "wait_for_lock"), "barrier": ([0, 2], "")}


@pytest.mark.parametrize(
    "kind", [pytest.param("spin", marks=pytest.mark.long), "lock", pytest.param("barrier", marks=pytest.mark.long)]
)
def test_a_rank_that_hangs(clean: Cluster, tmp_path: Path, kind: str) -> None:
    """A loop without a step, a deadlock, a barrier that one rank does not come to: rank 1 is named, and where it was."""
    ranks, place = HANGS[kind]
    run = start(clean, tmp_path, resources=ONE_HOST, restart={"max_restarts": 0, "hang_floor_s": 5.0})
    for rank in ranks:
        (run.paths.root / f"fault-{kind}-{rank}").touch()

    assert run.wait_end()["state"] == "failed"

    said = why(clean, run)
    assert said["kind"] == "hang"
    assert said["sentence"].startswith("Rank 1 ("), said
    assert place in said["sentence"]
    for text in logs(run).values():
        assert "most recent call first" in text
    run.wait_no_process()


@pytest.mark.long
def test_a_frozen_agent(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """An agent that stands still is killed and started again: the same hosts, the same end."""
    run = start(clean, tmp_path, params={"step_s": 0.5})
    host = run.state()["nodes"][1]

    inflict.agents(run)[1].send_signal(signal.SIGSTOP)

    ends_the_same(run, 3, undisturbed)
    assert host in {r["host"] for r in run.told("round_started")[-1]["ranks"]}
    assert run.told("node_lost")[0]["host"] == run.told("agent_revived")[0]["host"] == host
    assert len(run.told("attempt_started")) == 1


@pytest.mark.long
def test_a_frozen_leader(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """Without a keeper another agent hands the job back. SLURM's signals wake the leader: it writes nothing more."""
    run = start(clean, tmp_path, params={"step_s": 0.5})
    inflict.lose_keeper(run)
    leader = inflict.agents(run)[0]

    leader.send_signal(signal.SIGSTOP)
    run.wait("the other agent's decision", lambda: run.told("decision"))
    with contextlib.suppress(psutil.NoSuchProcess):
        leader.send_signal(signal.SIGCONT)

    ends_the_same(run, 3, undisturbed)
    assert len(run.told("attempt_started")) == 2
    (decision,) = run.told("decision", attempt=0)
    assert decision["evidence"] == "leader_gone"
    assert re.fullmatch(r"The leader on \S+ did not respond for \d+ s; the run is requeued\.", decision["reason"])
    assert [e["type"] for e in run.history() if e["attempt"] == 0][-1] == "requeued"
    assert len(run.told("requeued")) == 1


@pytest.mark.long
def test_a_frozen_fork_server(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """Training needs none; when a round ends, it is replaced, and its node is not given up."""
    run = start(clean, tmp_path, params={"step_s": 0.5})
    server = fork_server(run, 1)

    server.send_signal(signal.SIGSTOP)
    inflict.signal_rank(run, 0, signal.SIGKILL)

    ends_the_same(run, 3, undisturbed)
    assert len(run.told("attempt_started")) == 1
    assert len({r["host"] for r in run.told("round_started")[1]["ranks"]}) == 3
    with contextlib.suppress(psutil.NoSuchProcess):
        assert server.status() == psutil.STATUS_ZOMBIE


@pytest.mark.long
def test_a_frozen_store(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """gloo needs the store only to begin: training goes on, the same end, nothing is left."""
    run = start(clean, tmp_path, params={"step_s": 0.5})

    inflict.signal_store(run, signal.SIGSTOP)

    ends_the_same(run, 3, undisturbed)
    assert len(run.told("round_started")) == 1


@pytest.mark.long
def test_a_store_frozen_while_the_group_forms(clean: Cluster, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """Nobody can join: after distributed.init_timeout_min a new round with a new store, the same end."""
    run = submit(tmp_path, clean.env, 3, distributed={"init_timeout_min": 0.5})
    run.wait("a round", lambda: run.told("round_started"))

    inflict.signal_store(run, signal.SIGSTOP)

    ends_the_same(run, 3, undisturbed)
    assert len(run.told("attempt_started")) == 1
