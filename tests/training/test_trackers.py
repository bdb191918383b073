"""Trackers: fed in order, never able to stop or slow training, continued by later attempts."""

from __future__ import annotations

import http.server
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from crew import LIMIT_S, make_spec, run

from launcher.run.paths import RunPaths
from launcher.run.spec import CheckpointSpec
from launcher.training.trackers import Rows, Trackers, mlflow_run, open_sinks, script_variables


class Recorder:
    """A sink that remembers; it can fail, and it can wait."""

    def __init__(self, name: str = "recorder", *, fails: bool = False, gate: threading.Event | None = None) -> None:
        self.name = name
        self.fails, self.gate = fails, gate
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.tries = 0
        self.closed = False

    def write(self, rows: Rows) -> None:
        self.tries += 1
        if self.gate is not None:
            self.gate.wait(LIMIT_S)
        if self.fails:
            raise RuntimeError("the server is away")
        self.rows += [(step, numbers) for step, _, numbers in rows]

    def close(self) -> None:
        self.closed = True


def test_rows_arrive_in_order_and_sinks_are_closed() -> None:
    """Everything that was logged reaches every sink before it is closed."""
    sink = Recorder()
    trackers = Trackers(lambda: [sink], lambda text: None)
    for step in range(100):
        trackers(step, {"loss": float(step)})

    assert trackers.close(LIMIT_S)
    assert sink.rows == [(step, {"loss": float(step)}) for step in range(100)]
    assert sink.closed


def test_a_stuck_tracker_blocks_nobody() -> None:
    """While a sink hangs, logging returns and the surplus is dropped; closing gives up at its limit."""
    gate = threading.Event()
    trackers = Trackers(lambda: [Recorder(gate=gate)], lambda text: None)
    for step in range(30_000):
        trackers(step, {"loss": 0.0})

    assert not trackers.close(0.05)
    gate.set()


def test_a_failing_tracker_is_left_alone_after_a_while() -> None:
    """Five failures in a row: one warning, no further tries; the other sinks go on."""
    bad, good = Recorder("bad", fails=True), Recorder("good")
    said: list[str] = []
    trackers = Trackers(lambda: [bad, good], said.append)
    for step in range(20):
        trackers(step, {"loss": 0.0})
        while len(good.rows) <= step:
            threading.Event().wait(0.001)
    trackers.close(LIMIT_S)

    assert bad.tries == 5
    assert said == ["bad failed 5 times in a row and is left alone: the server is away"]


def test_a_missing_tracker_is_said_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package the job runs on, with one sentence that says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    spec = make_spec(tmp_path / "run", "small_jobs:Net", 1, trackers={"wandb": {}})
    said: list[str] = []

    assert open_sinks(spec, RunPaths(tmp_path / "run"), 0, said.append) == []
    assert "pip install 'ddp-launcher[wandb]'" in said[0]


def test_a_run_with_a_broken_tracker_completes(tmp_path: Path) -> None:
    """Trackers that cannot be reached or are not installed cost a warning, never the run."""
    trackers = {"mlflow": {"uri": "http://127.0.0.1:9"}, "tensorboard": {}, "wandb": {"mode": "disabled"}}
    spec = make_spec(
        tmp_path / "run", "small_jobs:Net", 2, trackers=trackers, checkpoint=CheckpointSpec(interval_min=1000)
    )

    assert {m["type"] for m in run(spec, 2).messages("finished")} == {"finished"}


class FakeMlflow(http.server.BaseHTTPRequestHandler):
    """Answers as MLflow's REST interface does; remembers what it was asked."""

    asked: list[tuple[str, Any]]

    def do_GET(self) -> None:
        self._answer({"experiment": {"experiment_id": "7"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked.append((self.path, body))
        self._answer({"run": {"info": {"run_id": "abc123"}}})

    def _answer(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


def test_scripts_get_ids_that_stay_the_same(tmp_path: Path) -> None:
    """The first attempt makes the MLflow run by REST, later ones and other ranks find its id; W&B's is the run's own."""
    FakeMlflow.asked = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeMlflow) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            uri = f"http://127.0.0.1:{server.server_port}"
            spec = make_spec(
                tmp_path / "run", "x.py", 1, kind="script", trackers={"mlflow": {"uri": uri, "experiment": "e"}}
            )
            paths = RunPaths(tmp_path / "run")
            first = script_variables(spec, paths, 0)
            later = [script_variables(spec, paths, rank) for rank in (0, 3)]
        finally:
            server.shutdown()
            thread.join(LIMIT_S)

    assert first == {"WANDB_RUN_ID": "run", "WANDB_RESUME": "allow", "MLFLOW_RUN_ID": "abc123"}
    assert later == [first, first]
    assert [(path, body["experiment_id"]) for path, body in FakeMlflow.asked] == [("/api/2.0/mlflow/runs/create", "7")]


def test_a_server_that_is_away_gives_no_id() -> None:
    """No server, or none over HTTP: no variable, no error."""
    assert mlflow_run({"uri": "http://127.0.0.1:9"}, "e", "n") is None
    assert mlflow_run({"uri": "sqlite:///x.db"}, "e", "n") is None


def test_tensorboard_files_hold_what_was_logged(tmp_path: Path) -> None:
    """A real run's event files, read back by TensorBoard's own reader (where it is installed)."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    spec = make_spec(tmp_path / "run", "small_jobs:Net", 1, trackers={"tensorboard": {}})
    run(spec, 1)
    events = reader.EventAccumulator(str(tmp_path / "run" / "trackers" / "tensorboard"))
    events.Reload()

    assert {"loss", "epoch_loss", "test_accuracy"} <= set(events.Tags()["scalars"])
