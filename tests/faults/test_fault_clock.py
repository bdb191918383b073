"""Clocks that are set by an hour while a run trains, on the leader's host and on another: real processes, libc's own clock calls."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import inflict
import pytest
from clocks import HOUR, Clocks
from cluster import Cluster
from harness import NEW_ATTEMPT, Run, ends_the_same, nothing_lost, submit, tells

Undisturbed = Callable[[int], str]
JUMPS = (("0", HOUR, "1", -HOUR), ("0", -HOUR, "1", HOUR))
"""Node 0's is the leader's clock. Each pair jumps at once; from the first to the second each clock moves by two hours."""


def read(clocks: Clocks, run: Run, reader: str, *words: str) -> str:
    """What a verb prints for a user whose own clock is off by so much."""
    env = {**os.environ, **clocks.environment(reader), "LAUNCHER_RUNS_DIR": str(run.paths.root.parent)}
    done = subprocess.run(
        [sys.executable, "-m", "launcher", words[0], run.paths.id, *words[1:]],
        env=env, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout


@pytest.fixture(scope="module")
def jumped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[tuple[str, str, dict[str, object]]]]:
    """A run over two nodes whose clocks jump twice, a worker killed after each jump; what readers were told meanwhile.

    A reader's clock is true, or off by an hour.
    """
    clocks = Clocks(tmp_path_factory.mktemp("clocks") / "clocks")
    readers = {"true": 0, "ahead": HOUR, "behind": -HOUR}
    for name, by in readers.items():
        clocks.set(name, by)
    run = submit(
        tmp_path_factory.mktemp("jumped"), {}, 2, backend="local", params={"step_s": 0.2},
        environment={"setup": [clocks.setup("$SUBMITIT_LOCAL_GLOBALID")]},
        restart={"max_total_hours": 0.5},
        resources={"cpus_per_task": 1},
    )  # fmt: skip
    told = []
    for number, (one, by, other, other_by) in enumerate(JUMPS):
        run.wait_round(number)
        run.wait("a checkpoint of the round", lambda number=number: run.told("saved", round=number))
        clocks.set(one, by)
        clocks.set(other, other_by)
        at = run.state()["step"]
        run.wait("steps after the jump", lambda at=at: run.outcome() or run.state()["step"] > at + 5)
        for name in readers:
            status = json.loads(read(clocks, run, name, "status", "--json"))
            told.append((read(clocks, run, name, "status"), read(clocks, run, name, "why"), status))
        inflict.signal_rank(run, 1 - number, signal.SIGKILL)
    run.wait_round(len(JUMPS))
    run.hurry()
    run.wait_end()
    for name in readers:
        status = json.loads(read(clocks, run, name, "status", "--json"))
        told.append((read(clocks, run, name, "status"), read(clocks, run, name, "why"), status))
    return run, told


def test_clocks_that_jump_decide_nothing(jumped, undisturbed: Undisturbed) -> None:
    """Two workers are killed, and that is all that is decided upon: no hang, no lost node, no hours used up; the same end."""
    run, _ = jumped

    ends_the_same(run, 2, undisturbed)
    assert [e["evidence"] for e in run.told("decision")] == ["worker_failed", "worker_failed", "done"]
    assert [(e["round"], e["rank"]) for e in run.told("worker_failed")] == [(0, 1), (1, 0)]
    assert not [e for e in run.history() if e["type"] in ("hang", "node_lost", "excluded", "stop_requested")]


def test_what_is_told_of_clocks_that_jump_is_in_order(jumped) -> None:
    """The leader's times go on as if nothing had happened: none jumps, and none goes back."""
    run, _ = jumped

    assert all(0 <= b["t"] - a["t"] < HOUR / 2 for a, b in pairwise(run.history()))
    assert run.told("attempt_ended")[0]["allocation_s"] < HOUR / 2
    assert abs(run.outcome()["t"] - run.told("ended")[0]["t"]) < 60


def test_readers_are_told_no_hours_whatever_their_clock_shows(jumped) -> None:
    """`status` and `why` of a run of a minute: it lives, nothing took an hour, nothing is in the future."""
    _, told = jumped
    running, ended = told[:-3], told[-3:]

    for status, why, values in told:
        durations = re.findall(r"[^\n]*(?:\d h\b|-\d+ (?:ms|s|min)\b)[^\n]*", status + why)
        assert not durations, durations
        assert 0 < values["ledger"]["total_s"] < HOUR / 2
        assert all(0 <= seconds < HOUR / 2 for seconds in values["ledger"]["seconds"].values())
    assert [(values["state"], values["silent"]) for _, _, values in running] == [("running", False)] * 6
    assert {values["state"] for _, _, values in ended} == {"completed"}


@pytest.mark.parametrize("by", [-HOUR, pytest.param(HOUR, marks=pytest.mark.long)])
def test_slurms_time_limit_is_met_with_a_wrong_clock(
    clean: Cluster, tmp_path: Path, undisturbed: Undisturbed, by: int
) -> None:
    """The leader's host and another are set while it trains, and a worker is killed: SLURM's USR2 is its time limit's, and nothing is lost."""
    clocks = Clocks(tmp_path / "clocks")
    run = submit(
        tmp_path / "run", clean.env, 3, params={"step_s": 0.6}, checkpoint={"interval_steps": 5},
        environment={"setup": [clocks.setup("$SLURMD_NODENAME")]},
        resources={"timeout_min": 1}, restart={"signal_lead_s": 20, "max_total_hours": 0.5},
        distributed={"init_timeout_min": 0.9},
    )  # fmt: skip
    run.wait_saved(1)
    leader, other = run.told("attempt_started")[0]["host"], run.rank(1)["host"]
    clocks.set(leader, by)
    clocks.set(other, -by)
    inflict.signal_rank(run, 2, signal.SIGKILL)

    ends_the_same(run, 3, undisturbed)
    signals = [(e["name"], e["meaning"]) for e in run.told("signal", attempt=0)]
    assert signals[0] == ("USR2", "time_limit")
    tells(run, ("decision", {"evidence": "worker_failed", "action": "new_round"}), *NEW_ATTEMPT)
    nothing_lost(run)
    assert not [e for e in run.history() if e["type"] in ("hang", "node_lost", "excluded")]
