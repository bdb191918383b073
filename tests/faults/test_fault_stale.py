"""Processes of an older round or attempt that stood still and go on: they commit nothing, delete nothing, and end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from harness import PATIENCE_S, Run, ends_the_same, submit

Undisturbed = Callable[[int], str]


@contextmanager
def standing_still(processes: list[psutil.Process]) -> Iterator[None]:
    """Stop these processes; at the end they go on."""
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            try:
                process.resume()
            except psutil.NoSuchProcess:
                pass


def node_of(run: Run, rank: int) -> list[psutil.Process]:
    """The agent of a rank's node, its fork server and all workers there."""
    agent = psutil.Process(run.rank(rank)["pid"]).parent().parent()
    return [agent, *agent.children(recursive=True)]


def committed(run: Run) -> dict[str, tuple[int, int]]:
    """Every checkpoint with the attempt and round that wrote it."""
    manifests = {
        path.parent.name: json.loads(path.read_text()) for path in run.paths.checkpoints.glob("step-*/manifest.json")
    }
    return {name: (m["attempt"], m["round"]) for name, m in manifests.items()}


def gone(processes: list[psutil.Process]) -> bool:
    """Whether all have ended."""
    return not psutil.wait_procs(processes, timeout=PATIENCE_S)[1]


def only_added(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]], by: tuple[int, int]) -> None:
    """What was committed is as it was, and everything new comes from one attempt and round."""
    assert {name: after[name] for name in before} == before
    assert {after[name] for name in set(after) - set(before)} == {by}


KEEP = {"interval_steps": 5, "keep_last": 1000}


@pytest.mark.long
def test_a_node_that_stood_still_through_a_round_change(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """Agent and worker of round 0 go on in round 1, which a spare joined: nothing of what is committed changes by them."""
    run = submit(tmp_path, {}, 2, backend="local", checkpoint=KEEP, resources={"spare_nodes": 1})
    run.wait_saved(1)
    run.wait_step(8)
    stale = node_of(run, 1)
    with standing_still(stale):
        run.wait("a round without that node", lambda: len(run.told("round_started")) == 2)
        run.wait("a checkpoint of that round", lambda: (0, 1) in committed(run).values())
        before = committed(run)

    assert gone(stale)
    ends_the_same(run, 2, undisturbed)
    only_added(before, committed(run), by=(0, 1))


@pytest.mark.long
def test_a_leader_that_stood_still_through_an_attempt(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """All of attempt 0, its leader included, goes on while attempt 1 trains: the newer attempt's end is the undisturbed one."""
    run = submit(tmp_path, {}, 2, backend="local", checkpoint=KEEP)
    run.wait_saved(1)
    run.wait_step(8)
    controller = json.loads(run.paths.submission.read_text())["pid"]
    stale = [p for p in run.processes() if p.pid != controller]
    with standing_still(stale):
        os.kill(controller, signal.SIGKILL)
        env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "LAUNCHER_RUNS_DIR": str(tmp_path / "runs")}
        words = [sys.executable, "-m", "launcher", "resubmit", run.paths.id]
        subprocess.run(words, env=env, check=True, capture_output=True, timeout=PATIENCE_S)
        run.wait("a checkpoint of attempt 1", lambda: (1, 0) in committed(run).values())
        before = committed(run)

    assert gone(stale)
    ends_the_same(run, 2, undisturbed)
    only_added(before, committed(run), by=(1, 0))
