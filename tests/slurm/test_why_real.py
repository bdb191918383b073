"""Planted failures on the real cluster: `launcher why` names each one's root cause.

Most happen in one run each, a round apiece (a restart in place takes moments): what ``why`` says while the run stands at a
decision is read off the history up to that decision.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from harness import Run, submit

from launcher.report.diagnosis.why import Why, explain
from launcher.report.model.history import History, read_history
from launcher.report.model.summary import summarise_history
from launcher.run.events import Decided

CODE = Path(__file__).parent / "planted"
ONE_NODE = {"nodes": 1, "tasks_per_node": 2}
LIMIT_S = 10.0
"""A failure is named within this time, counted from where the fault shows (`SHOWS_S`)."""
SHOWS_S = {"barrier": 2.0, "hang": 3.0, "frozen": 3.0}
"""Faults that nobody can see before a time-out: monitored_barrier's own, and ``hang_floor_s``."""

FAULTS: dict[str, tuple[str, str]] = {
    "exception": ("exception", "Rank 1 (node2) raised ValueError at step 3: bad label 11."),
    "key error": ("exception", "Rank 1 (node2) raised KeyError at step 3: 'temperature'."),
    "shape": ("exception", "Rank 1 (node2) raised RuntimeError at step 3: mat1 and mat2 shapes cannot be multiplied"),
    "no module": ("import", "Rank 1 (node2) could not import a_package_nobody_has at step 3."),
    "no name": (
        "import",
        "Rank 1 (node2) could not import what it needs at step 3: cannot import name 'no_such_function'",
    ),
    "memory": ("host_memory", "Rank 1 (node2) could not get the memory it asked for at step 3."),
    "cuda memory": ("cuda_oom", "Rank 1 (node2) ran out of GPU memory at step 3."),
    "segfault": ("signal", "Rank 1 (node2) crashed with a segmentation fault (SIGSEGV)"),
    "abort": ("signal", "Rank 1 (node2) crashed with an abort (SIGABRT)"),
    "float": ("signal", "Rank 1 (node2) crashed with a floating-point error (SIGFPE)"),
    "bus": ("signal", "Rank 1 (node2) crashed with a bus error (SIGBUS)"),
    "killed": ("signal", "Rank 1 (node2) was killed from outside (SIGKILL)"),
    "exit 3": ("exit", "Rank 1 (node2) exited with code 3"),
    "exit 0": ("exit", "Rank 1 (node2) exited with code 0"),
    "disk": ("disk_full", "Rank 1 (node2) could not write at step 3: the disk is full."),
    "quota": ("disk_full", "Rank 1 (node2) could not write at step 3: the quota is used up."),
    "barrier": ("timeout", "Rank 1 (node2) did not take part in a collective; rank 0 gave up waiting"),
    "hang": ("hang", "Rank 1 (node2) hung"),
    "frozen": ("hang", "Rank 1 (node2) was frozen at step"),
}
PLACES = {
    "exception": 'raise ValueError("bad label 11")', "key error": '{}["temperature"]', "no module": "import a_package_nobody_has",
    "segfault": "null_pointer", "hang": "wait_for_lock",
}  # fmt: skip
SCRIPTS: dict[str, tuple[str, str]] = {
    "traceback": ("exception", "Rank 1 (node2) raised RuntimeError"),
    "exit": ("exit", "Rank 1 (node2) exited with code 3"),
    "segfault": ("signal", "Rank 1 (node2) crashed with a segmentation fault (SIGSEGV)"),
    "killed": ("signal", "Rank 1 (node2) was killed from outside (SIGKILL)"),
    "import": ("import", "Rank 1 (node2) could not import a_package_nobody_has"),
}


def plant(cluster: Cluster, directory: Path, **job: Any) -> Run:
    """Submit a job of two ranks on two hosts that fails as told."""
    base: dict[str, Any] = {
        "name": "planted", "task": None, "code": {"dir": str(CODE)}, "checkpoint": {"enabled": False, "interval_steps": None},
        "restart": {"hang_floor_s": 3.0, "max_restarts": 1000, "requeue": False}, "resources": {"nodes": 2, "tasks_per_node": 1},
    }  # fmt: skip
    if "script" not in job:
        base["function"] = "planted:train"
    for key, value in job.items():
        base[key] = {**base[key], **value} if isinstance(base.get(key), dict) else value
    return submit(directory, cluster.env, 2, **base)


def told(history: History, cluster: Cluster | None = None) -> Why:
    """What ``launcher why`` says."""
    now = max(float(history.events[-1].t), float(history.state.get("t", 0))) + 1
    return explain(history, summarise_history(history, None, now), now)


def at_each_decision(run: Run) -> list[Why]:
    """What ``launcher why`` said when the run stood at each of its decisions."""
    whole = read_history(run.paths)
    found = []
    for i, event in enumerate(whole.events):
        if isinstance(event, Decided) and event.evidence != "done":
            then = dataclasses.replace(whole, events=whole.events[: i + 1], raw_outcome=None)
            found.append(told(then))
    return found


@pytest.fixture(scope="module")
def functions(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """One run with every fault of a function, a round each; and one with those of a script, at the same time."""
    run = plant(cluster, tmp_path_factory.mktemp("functions"), params={"hows": list(FAULTS)})
    yield run
    cluster.cancel_all()


@pytest.fixture(scope="module")
def scripts(cluster: Cluster, functions: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run with every fault of a script, a round each, beside that of the functions."""
    return plant(cluster, tmp_path_factory.mktemp("scripts"), script="script.py", args=list(SCRIPTS))


def test_what_goes_wrong_in_functions_is_named(functions: Run, scripts: Run) -> None:
    """Nineteen failures in one run: kind, rank, host and step of each, and the user's own line where there is one."""
    outcome = functions.wait_end()
    assert outcome["state"] == "completed", outcome
    found = at_each_decision(functions)

    assert [w.kind for w in found] == [kind for kind, _ in FAULTS.values()]
    for (how, (_, sentence)), why in zip(FAULTS.items(), found, strict=True):
        assert why.sentence.startswith(sentence), how
        if how in PLACES:
            assert PLACES[how] in dict(why.rows)["where"], (how, why.rows)


def test_failures_are_named_soon(functions: Run) -> None:
    """Between a fault (a hang: its limit) and the decision that names it lie less than ten seconds."""
    functions.wait_end()
    decisions = [e for e in functions.history() if e["type"] == "decision" and e.get("evidence") != "done"]
    delays = {}
    for number, (how, decision) in enumerate(zip(FAULTS, decisions, strict=True)):
        delays[how] = decision["t"] - (functions.paths.root / f"planted-{number}").stat().st_mtime

    print(json.dumps({how: round(d, 2) for how, d in delays.items()}))
    assert all(delay < LIMIT_S + SHOWS_S.get(how, 0.0) for how, delay in delays.items()), delays


def test_what_goes_wrong_in_scripts_is_named(scripts: Run) -> None:
    """Five failures of an unmodified script, from its exit, its signal and its last lines."""
    outcome = scripts.wait_end()
    assert outcome["state"] == "completed", outcome
    found = at_each_decision(scripts)

    assert [w.kind for w in found] == [kind for kind, _ in SCRIPTS.values()]
    for (how, (_, sentence)), why in zip(SCRIPTS.items(), found, strict=True):
        assert why.sentence.startswith(sentence), how


def ended(run: Run) -> Why:
    """What ``launcher why`` says of a run that has ended."""
    run.wait_end()
    return told(read_history(run.paths))


def steady(cluster: Cluster, directory: Path, **job: Any) -> Run:
    """A run that trains until something happens to it from outside."""
    run = plant(cluster, directory, params={"hows": ["nothing"]}, **job)
    run.wait_step(2)
    return run


def test_a_collective_that_a_rank_misses(cluster: Cluster, tmp_path: Path) -> None:
    """With hang detection off, the collective's own time-out ends it, and the rank that did not come is named."""
    run = plant(cluster, tmp_path, params={"hows": ["collective"]}, distributed={"collective_timeout_min": 0.1},
                restart={"max_restarts": 0, "hang_detection": False})  # fmt: skip
    why = ended(run)

    assert why.kind == "timeout"
    assert why.sentence.startswith(
        "Rank 1 (node2) did not take part in a collective; rank 0 gave up waiting after 6.0 s"
    )


def test_scancel_and_launcher_cancel_are_told_apart(cluster: Cluster, tmp_path: Path) -> None:
    """Who ended the run: SLURM's command or this one."""
    by_slurm, by_launcher = (steady(cluster, tmp_path / name, resources=ONE_NODE) for name in "ab")
    job_id = json.loads(by_slurm.paths.submission.read_text())["job_id"]
    cluster.run(["scancel", job_id])
    environment = {**os.environ, **cluster.env, "LAUNCHER_RUNS_DIR": str(by_launcher.paths.root.parent)}
    command = [sys.executable, "-m", "launcher", "cancel", by_launcher.paths.id, "--save"]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
    first, second = ended(by_slurm), ended(by_launcher)

    assert (first.kind, first.sentence) == (
        "cancelled",
        f"The job {job_id} was cancelled (scancel, by its owner or an administrator).",
    )
    assert (second.kind, second.sentence) == ("user", "The run was cancelled with `launcher cancel`.")


def test_a_dead_host_is_named(cluster: Cluster, tmp_path: Path) -> None:
    """Every process of the second host dies; the run may not come back."""
    run = steady(cluster, tmp_path, restart={"max_restarts": 0})
    cluster.kill(run.state()["nodes"][1])
    why = ended(run)

    assert why.kind == "node"
    assert why.sentence.startswith(f"Node {run.state()['nodes'][1]} ")


@pytest.mark.long
def test_a_preempted_run_that_may_not_come_back(cluster: Cluster, tmp_path: Path) -> None:
    """restart.requeue is off: preemption ends the run, and that is what is said."""
    cluster.cancel_all()
    run = steady(cluster, tmp_path, resources=ONE_NODE)
    cluster.sbatch("-p", "high", "-N4", "--exclusive", "--output=/dev/null", wrap="true")
    why = ended(run)

    assert why.kind == "preempted"
    assert why.sentence.startswith("SLURM preempted the run")


def test_a_leader_that_dies_silently_is_found_out(cluster: Cluster, tmp_path: Path) -> None:
    """kill -9 of the leader of a run that may not come back: the verb itself asks SLURM and says so."""
    run = steady(cluster, tmp_path, resources=ONE_NODE)
    for process in run.processes():
        if process.pid == run.state()["leader_pid"]:
            process.send_signal(signal.SIGKILL)
    job_id = json.loads(run.paths.submission.read_text())["job_id"]
    cluster.wait(
        lambda: cluster.job(job_id).get("JobState") not in ("RUNNING", "COMPLETING", "PENDING"), "the job's end", 240
    )
    deadline = time.monotonic() + 240
    while "kind" not in (said := why_verb(cluster, run)) or said["kind"] == "running":
        assert time.monotonic() < deadline, said
        time.sleep(2)

    assert said["state"] == "failed"
    assert said["kind"] == "leader", said


def why_verb(cluster: Cluster, run: Run) -> dict[str, Any]:
    """What ``launcher why RUN --json`` prints."""
    environment = {**os.environ, **cluster.env, "LAUNCHER_RUNS_DIR": str(run.paths.root.parent)}
    command = [sys.executable, "-m", "launcher", "why", run.paths.id, "--json"]
    out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=120).stdout
    value: dict[str, Any] = json.loads(out)
    return value
