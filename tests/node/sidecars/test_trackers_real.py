"""The trackers themselves: a real MLflow server on SQLite, TensorBoard's own reader, Weights & Biases' own files."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from an_event import an_event
from harness import Run, submit
from mlflow_server import Server

from launcher.node.allocation.allocation import Allocation
from launcher.node.allocation.end_run import end_run
from launcher.node.leader.tracking import Tracking
from launcher.run import event_lines
from launcher.run.files import append_line, read_object
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec, Work

LIMIT_S = 300.0
"""Far above what anything here takes: it fails only when something hangs."""
pytestmark = pytest.mark.timeout(900)
pytest.importorskip("mlflow")
pytest.importorskip("wandb")
EVENTS = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for all tests of this file: it takes some seconds to start."""
    one = Server(tmp_path_factory.mktemp("mlflow"))
    yield one
    one.kill()


def scalars(folder: Path, tag: str = "loss") -> list[tuple[int, float]]:
    """A curve as TensorBoard shows it."""
    read = EVENTS.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    read.Reload()
    return [(e.step, round(e.value, 4)) for e in read.Scalars(tag)]


def records(path: Path) -> Iterator[Any]:
    """The records of a .wandb file: LevelDB's log format behind a header of seven bytes, each a message of W&B's own."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        if kind == 0:
            break
        parts = (parts if kind in (3, 4) else b"") + data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(parts)
            yield record


def wandb_run(folder: Path) -> dict[str, Any]:
    """What Weights & Biases has on disk of a run: ids, config, points of all attempts in order, exit codes."""
    out: dict[str, Any] = {"ids": [], "config": {}, "points": [], "exit": [], "commit": ""}
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"), key=lambda p: p.stat().st_mtime_ns):
        for record in records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                out["ids"].append(record.run.run_id)
                out["config"] |= {i.key: json.loads(i.value_json) for i in record.run.config.update}
                out["commit"] = record.run.git.commit or out["commit"]
            if kind == "history":
                said = {i.key or "/".join(i.nested_key): i.value_json for i in record.history.item}
                out["points"].append({name: json.loads(value) for name, value in said.items()})
            if kind == "exit":
                out["exit"].append(record.exit.exit_code)
    return out


def wandb_points(seen: dict[str, Any], name: str = "loss") -> list[tuple[int, float]]:
    """A curve of Weights & Biases."""
    return [(p["_step"], p[name]) for p in seen["points"] if name in p]


# --- one attempt after the other, without training ---


def spec_of(paths: RunPaths, experiment: str, uri: str, **changes: Any) -> RunSpec:
    """A task's spec with all three trackers."""
    trackers = {
        "tensorboard": {},
        "mlflow": {"uri": uri, "experiment": experiment},
        "wandb": {"project": experiment, "mode": "offline"},
    }
    work = Work(kind="task", target="m:C", params={"lr": 0.1, "model": {"depth": 3}})
    values: dict[str, Any] = {"id": paths.id, "name": "t", "run_dir": str(paths.root), "work": work, "batch": "local",
              "nodes": 1, "tasks_per_node": 1, "timeout_min": 1, "backend": "gloo",
              "python": sys.executable, "trackers": trackers}  # fmt: skip
    spec = RunSpec(**{**values, **changes})
    spec.write(paths.spec)
    paths.job.write_text("name: t\n")
    paths.environment.write_text(json.dumps({"code": {"commit": "4f2c1e9", "dirty": False}, "user": "ann"}))
    return spec


def steps(paths: RunPaths, attempt: int, first: int, last: int, resume: int | None) -> None:
    """A round that did these steps."""
    event_lines.append(paths.events, an_event("round_started", attempt=attempt, round=0, resume_step=resume))
    for step in range(first, last + 1):
        line = {"t": 1e9 + step, "attempt": attempt, "round": 0, "step": step, "metrics": {"loss": step / 10}}
        append_line(paths.metrics, line)


async def attempt(
    spec: RunSpec, paths: RunPaths, number: int, state: str, do: Callable[[], None], limit_s: float = LIMIT_S
) -> list[str]:
    """One attempt's trackers; ``do`` is what the run does meanwhile. Warnings."""
    said: list[str] = []
    tracking = Tracking(spec, paths, number, said.append)
    await tracking.start()
    await asyncio.to_thread(do)
    tracking.end(state, "because")
    began = time.monotonic()
    await tracking.drain(limit_s)
    assert time.monotonic() - began < limit_s + 5
    return said


def test_three_attempts_are_one_run_in_every_tracker(tmp_path: Path, server: Server) -> None:
    """Steps done again after a restart appear once; parameters, commit, job file and state are what users look for."""
    paths = RunPaths(tmp_path / "t-1122-0900-abc")
    paths.root.mkdir()
    spec = spec_of(paths, "three", server.uri)
    said = asyncio.run(attempt(spec, paths, 0, "requeued", lambda: steps(paths, 0, 1, 7, None)))
    mlflow_between = server.only_run("three").info.status
    states: list[str] = []

    def again() -> None:
        steps(paths, 1, 5, 9, 4)
        end = time.monotonic() + LIMIT_S
        while (tags := server.only_run("three").data.tags)["launcher.attempt"] == "0":
            assert time.monotonic() < end
            time.sleep(0.05)
        states.append(tags["launcher.state"])

    said += asyncio.run(attempt(spec, paths, 1, "requeued", again))
    said += asyncio.run(attempt(spec, paths, 2, "completed", lambda: steps(paths, 2, 10, 12, 9)))
    wanted = [(step, step / 10) for step in range(1, 13)]
    run, seen = server.only_run("three"), wandb_run(paths.trackers)

    assert [] == said
    assert wanted == scalars(paths.trackers / "tensorboard")
    assert wanted == server.points(run, "loss")
    assert wanted == wandb_points(seen)
    assert ("SCHEDULED", "FINISHED") == (mlflow_between, run.info.status)
    assert (["running"], "completed") == (states, run.data.tags["launcher.state"])
    assert {"lr": "0.1", "model.depth": "3", "world_size": "1", "seed": "0"}.items() <= run.data.params.items()
    assert ("4f2c1e9", "ann") == (run.data.tags["mlflow.source.git.commit"], run.data.tags["mlflow.user"])
    assert ("2", "because") == (run.data.tags["launcher.attempt"], run.data.tags["launcher.reason"])
    assert ["job.yaml"] == [f.path for f in server.client().list_artifacts(run.info.run_id)]
    assert [paths.id] * 3 == seen["ids"]
    assert ("4f2c1e9", 0.1, 3) == (seen["commit"], seen["config"]["lr"], seen["config"]["model.depth"])
    assert 0 == seen["exit"][-1]


@pytest.mark.long
def test_a_server_killed_in_the_middle_gets_the_rest_in_the_next_attempt(tmp_path: Path, server: Server) -> None:
    """kill -9 of the server: one warning, the attempt ends within its limit; what it missed follows, nothing twice."""
    paths = RunPaths(tmp_path / "t-1122-0900-kil")
    paths.root.mkdir()
    spec = spec_of(paths, "killed", server.uri, trackers={"mlflow": {"uri": server.uri, "experiment": "killed"}})

    def delivered() -> int:
        found = read_object(paths.trackers / "mlflow.json") or {}
        return int(found.get("offset") or 0)

    def die() -> None:
        steps(paths, 0, 1, 5, None)
        end = time.monotonic() + LIMIT_S
        while not delivered():
            assert time.monotonic() < end
            time.sleep(0.05)
        server.kill()
        for step in range(6, 9):
            append_line(
                paths.metrics, {"t": 1.0, "attempt": 0, "round": 0, "step": step, "metrics": {"loss": step / 10}}
            )

    said = asyncio.run(attempt(spec, paths, 0, "requeued", die, limit_s=5.0))
    server.start()
    said_later = asyncio.run(attempt(spec, paths, 1, "completed", lambda: steps(paths, 1, 9, 10, 8)))

    assert (1, []) == (len(said), said_later), said
    assert [(step, step / 10) for step in range(1, 11)] == server.points(server.only_run("killed"), "loss")


def test_a_run_that_ends_without_a_leader_has_ended_in_mlflow_too(tmp_path: Path, server: Server) -> None:
    """The leader and its trackers' process are killed, and whoever ends the run sends the rest: it was RUNNING there for ever."""
    paths = RunPaths(tmp_path / "t-1122-0900-end")
    paths.root.mkdir()
    spec = spec_of(paths, "without", server.uri, trackers={"mlflow": {"uri": server.uri, "experiment": "without"}})

    async def killed() -> None:
        tracking = Tracking(spec, paths, 0, lambda text: None)
        await tracking.start()
        steps(paths, 0, 1, 5, None)
        await tracking.known(LIMIT_S)
        tracking.kill()
        await tracking.drain(LIMIT_S)

    asyncio.run(killed())
    before = server.only_run("without").info.status
    steps(paths, 0, 6, 8, None)
    end_run(paths, Allocation(paths), 0, "failed", "No leader could begin, 4 times in a row.")
    run = server.only_run("without")

    assert ("RUNNING", "FAILED") == (before, run.info.status)
    assert run.data.tags["launcher.reason"] == "No leader could begin, 4 times in a row."
    assert [(step, step / 10) for step in range(1, 9)] == server.points(run, "loss")


# --- real runs ---


def all_sent(run: Run) -> None:
    """On a starved machine a run of seconds is over before a tracker is imported: what it then lacks is sent now."""
    words = [sys.executable, "-m", "launcher.node.sidecars.trackers", str(run.paths.root)]
    subprocess.run(words, check=True, capture_output=True, timeout=LIMIT_S)


def test_a_run_with_all_three_killed_once_is_one_clean_curve(tmp_path: Path, server: Server) -> None:
    """A rank of a real run dies by SIGKILL: every tracker has each step once, the evaluation, and that it completed."""
    job = {
        "trackers": {
            "tensorboard": True,
            "mlflow": {"uri": server.uri, "experiment": "killed once"},
            "wandb": {"project": "p", "mode": "offline"},
        },
        "params": {"epochs": 2, "step_s": 0.3, "rows": 160},  # 12 s: the test may see a step late
        "checkpoint": {"interval_steps": 5},
    }
    run: Run = submit(tmp_path, {}, 1, backend="local", resources={"tasks_per_node": 2}, **job)
    run.wait_saved(1)
    run.wait_step(8)
    os.kill(int(run.rank(1)["pid"]), signal.SIGKILL)
    outcome = run.wait_end()
    run.wait_no_process()
    all_sent(run)
    last = outcome["step"]
    board = scalars(run.paths.trackers / "tensorboard")
    tracked = server.only_run("killed once")
    remote, seen = server.points(tracked, "loss"), wandb_run(run.paths.trackers)
    failed = [e["text"] for e in run.told("warning") if "failed" in e["text"] or "is not used" in e["text"]]

    assert ("completed", []) == (outcome["state"], failed)
    assert len(run.told("round_started")) == 2
    for curve in (board, remote, wandb_points(seen)):
        assert [s for s, _ in curve] == sorted({s for s, _ in curve})
        assert {1, last} <= {s for s, _ in curve}
        assert len(curve) > 0.8 * last
    assert dict(board) == {s: round(v, 4) for s, v in remote}
    assert 2 == len(server.points(tracked, "epoch_loss"))
    assert "FINISHED" == tracked.info.status
    assert {run.paths.id} == set(seen["ids"])


SCRIPT = """
import os, pathlib, sys, time
import mlflow, torch.distributed as dist, wandb
dist.init_process_group("gloo")
rank, done = dist.get_rank(), pathlib.Path(sys.argv[1])
first = int(done.read_text()) if done.exists() else 0
dist.barrier()
if rank == 0:
    tracked = wandb.init()
    mlflow.start_run()
for step in range(first, 6):
    dist.barrier()
    if rank == 0:
        tracked.log({"loss": step / 10}, step=step)
        mlflow.log_metric("loss", step / 10, step=step)
        done.write_text(str(step + 1))
    if step == 2 and first == 0 and rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), 9)
if rank == 0:
    tracked.finish()
    mlflow.end_run()
"""


@pytest.mark.long
def test_a_scripts_own_trackers_continue_the_same_runs(tmp_path: Path, server: Server) -> None:
    """``wandb.init()`` and ``mlflow.start_run()`` without arguments go on with the same run after a rank was killed."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    job = {
        "task": None,
        "script": "train.py",
        "args": ["${run.dir}/done"],
        "code": {"dir": str(tmp_path / "code")},
        "trackers": {
            "mlflow": {"uri": server.uri, "experiment": "script"},
            "wandb": {"project": "p", "mode": "offline"},
        },
    }
    run: Run = submit(tmp_path, {}, 1, backend="local", resources={"tasks_per_node": 2}, **job)
    outcome = run.wait_end()
    run.wait_no_process()
    tracked, seen = server.only_run("script"), wandb_run(run.paths.trackers)
    folders = [p.name.split("-", 3)[3] for p in run.paths.trackers.glob("wandb/offline-run-*")]

    assert "completed" == outcome["state"], outcome
    assert len(run.told("round_started")) == 2
    assert list(range(6)) == [s for s, _ in server.points(tracked, "loss")]
    assert [run.paths.id] * 2 == folders
    assert (
        run.paths.id == seen["ids"][-1]
    )  # what the killed round had not written yet is lost, as ever with that library
    assert "FINISHED" == tracked.info.status
    assert (run.paths.id, tracked.data.tags["launcher.run"]) == (tracked.info.run_name, run.paths.id)


_LEADER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-m", "launcher.node.sidecars.trackers", sys.argv[1], "0"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
time.sleep(3600)
"""


def test_nothing_of_a_library_outlives_a_killed_leader(tmp_path: Path) -> None:
    """Weights & Biases starts a process of its own: it ends too when the leader dies by SIGKILL."""
    paths = RunPaths(tmp_path / "t-1122-0900-dea")
    paths.root.mkdir()
    spec_of(paths, "dead", "", trackers={"wandb": {"mode": "offline"}})
    steps(paths, 0, 1, 3, None)
    with subprocess.Popen(
        [sys.executable, "-c", _LEADER, str(paths.root)], stdout=subprocess.PIPE, text=True
    ) as leader:
        assert leader.stdout is not None
        trackers = psutil.Process(int(leader.stdout.readline()))
        end = time.monotonic() + LIMIT_S
        while not (read_object(paths.trackers / "wandb.json") or {}).get("offset"):
            assert time.monotonic() < end
            time.sleep(0.1)
        family = [trackers, *trackers.children(recursive=True)]
        leader.kill()
    _, alive = psutil.wait_procs(family, timeout=LIMIT_S)

    assert len(family) > 1
    assert [] == alive
