"""Trackers' feeds: rows in order, again after failures, nothing twice; and the process beside the leader."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from an_event import an_event

from launcher.node.leader import tracking
from launcher.node.leader.tracking import Tracking
from launcher.node.sidecars import sinks, trackers
from launcher.node.sidecars.sinks import End, MetricsRow
from launcher.node.sidecars.trackers import TrackerFeed, read_rows
from launcher.run import event_lines
from launcher.run.files import append_line
from launcher.run.paths import RunPaths
from launcher.run.spec import RunSpec, Work

LIMIT_S = 240.0
"""Far above what anything here takes: it fails only when something hangs."""


def row(paths: RunPaths, step: int, attempt: int = 0, round_: int = 0, **metrics: Any) -> None:
    """What the leader notes of a step."""
    line = {"t": 1.0 + step, "attempt": attempt, "round": round_, "step": step, "epoch": 0}
    append_line(paths.metrics, {**line, "metrics": metrics or {"loss": float(step)}})


def round_started(paths: RunPaths, attempt: int, round_: int, resume_step: int | None) -> None:
    """What the leader tells of a round."""
    event_lines.append(paths.events, an_event("round_started", attempt=attempt, round=round_, resume_step=resume_step))


class Recorder:
    """A sink that remembers; it can fail a number of times, and it can wait."""

    def __init__(self, name: str = "recorder", *, fails: int = 0, rewinds: bool = False) -> None:
        self.name, self.fails, self.rewinds = name, fails, rewinds
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.rewound: list[int] = []
        self.opened = 0
        self.ends: list[End] = []
        self.gate = threading.Event()
        self.gate.set()

    def open(self, memory: dict[str, Any], keep: Callable[[], None]) -> None:
        self.opened += 1

    def rewind(self, step: int) -> None:
        self.rewound.append(step)

    def write(self, rows: list[MetricsRow]) -> None:
        self.gate.wait(LIMIT_S)
        if self.fails:
            self.fails -= 1
            raise RuntimeError("the server is away")
        self.rows += [(r.step, r.numbers) for r in rows]

    def close(self, end: End) -> None:
        self.ends.append(end)


def feed(paths: RunPaths, sink: Recorder, said: list[str] | None = None, state: str = "completed") -> TrackerFeed:
    """Deliver everything there is to ``sink``, to the end."""
    one = TrackerFeed(sink, paths, (said if said is not None else []).append)
    one.start()
    one.finish(End(state))
    one.join(LIMIT_S)
    return one


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """An empty run, whose trackers' failures are retried soon."""
    monkeypatch.setattr(trackers, "_PAUSES_S", (0.01,))
    return RunPaths(tmp_path)


def test_rows_arrive_in_order_and_the_end_is_told(paths: RunPaths) -> None:
    """Everything in metrics.jsonl reaches the sink, then how the run ended; torn and foreign lines do no harm."""
    for step in range(1, 101):
        row(paths, step)
    with paths.metrics.open("ab") as file:
        file.write(b'nonsense\n{"metrics": 3}\n{"step": 101, "metr')
    sink = Recorder()
    one = feed(paths, sink)

    assert [(s, {"loss": float(s)}) for s in range(1, 101)] == sink.rows
    assert [End("completed")] == sink.ends
    assert one.done


def test_a_failing_tracker_gets_its_rows_later_and_is_told_once(paths: RunPaths) -> None:
    """Five failures: one sentence, and in the end every row once."""
    for step in range(1, 11):
        row(paths, step)
    sink, said = Recorder(fails=5), []
    one = TrackerFeed(sink, paths, said.append)
    one.start()
    deadline = time.monotonic() + LIMIT_S
    while len(sink.rows) < 10 and time.monotonic() < deadline:
        time.sleep(0.01)
    one.finish(End("completed"))
    one.join(LIMIT_S)

    assert list(range(1, 11)) == [s for s, _ in sink.rows]
    assert ["tracker recorder failed and is retried, the run continues: the server is away"] == said


def test_a_long_error_of_a_tracker_tells_no_part_of_a_secret(paths: RunPaths) -> None:
    """What a tracker's library says is shortened after the passed values are taken out."""

    class Refused(Recorder):
        def write(self, rows: list[MetricsRow]) -> None:
            raise RuntimeError("x" * 290 + "hunter22-hunter22" + "y" * 90)

    row(paths, 1)
    said: list[str] = []
    one = TrackerFeed(Refused(), paths, said.append, secrets=["hunter22-hunter22"])
    one.start()
    one.finish(End("completed"))
    one.join(LIMIT_S)

    assert [f"tracker recorder failed and is retried, the run continues: {'x' * 290}<redacted>..."] == said


def test_the_next_attempt_goes_on_where_this_one_stopped(paths: RunPaths) -> None:
    """The place in the file is kept: a second process sends what is new and nothing again."""
    round_started(paths, 0, 0, None)
    for step in range(1, 6):
        row(paths, step)
    feed(paths, Recorder(), state="requeued")
    round_started(paths, 1, 0, 5)
    for step in range(6, 9):
        row(paths, step, attempt=1)
    second = Recorder()
    feed(paths, second)

    assert [6, 7, 8] == [s for s, _ in second.rows]


def test_steps_done_again_are_left_out_where_they_cannot_be_taken_back(paths: RunPaths) -> None:
    """After a crash the steps beyond the checkpoint come again: a tracker that cannot rewind keeps the first ones."""
    round_started(paths, 0, 0, None)
    for step in range(1, 8):
        row(paths, step)
    round_started(paths, 0, 1, 4)
    for step in range(5, 10):
        row(paths, step, round_=1)
    sink = Recorder()
    feed(paths, sink)

    assert list(range(1, 10)) == [s for s, _ in sink.rows]
    assert [] == sink.rewound


def test_steps_done_again_replace_the_old_ones_where_they_can(paths: RunPaths) -> None:
    """A tracker that can rewind is told the step to go back to, and gets every step of the new round."""
    round_started(paths, 0, 0, None)
    for step in range(1, 8):
        row(paths, step)
    row(paths, 4, accuracy=0.5)
    round_started(paths, 0, 1, 4)
    row(paths, 4, round_=1, accuracy=0.5)
    for step in range(5, 10):
        row(paths, step, round_=1)
    sink = Recorder(rewinds=True)
    feed(paths, sink)

    assert [4] == sink.rewound
    assert [1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, 8, 9] == [s for s, _ in sink.rows]


def test_words_for_numbers_that_json_cannot_hold(paths: RunPaths) -> None:
    """A loss that is NaN or infinite arrives as such; what is no number is left out."""
    row(paths, 1, loss="nan", high="inf", name="x")
    sink = Recorder()
    feed(paths, sink)

    assert [{"loss", "high"}] == [set(n) for _, n in sink.rows]
    assert float("inf") == sink.rows[0][1]["high"]


def test_a_read_ends_at_a_whole_line(tmp_path: Path) -> None:
    """A line that is being written is read when it is whole."""
    path = tmp_path / "m"
    path.write_bytes(b'{"metrics": {"a": 1}}\n{"metrics"')
    ((first, at),) = read_rows(path, 0)
    path.write_bytes(b'{"metrics": {"a": 1}}\n{"metrics": {"b": 2}}\n')

    assert {"metrics": {"a": 1}} == first
    assert [{"metrics": {"b": 2}}] == [value for value, _ in read_rows(path, at)]


def test_a_row_of_very_many_metrics_is_read(tmp_path):
    """It is longer than what is read at once: were it passed over, nothing behind it would be delivered either."""
    path = tmp_path / "m"
    many = {f"layer.{n}.weight.norm": 0.123456789 for n in range(20_000)}
    path.write_text(json.dumps({"metrics": many}) + '\n{"metrics": {"b": 2}}\n' + "[" * 100_000 + "\n")
    (first, at), *_ = read_rows(path, 0)

    assert {"metrics": many} == first
    assert [{"metrics": {"b": 2}}, {"metrics": {}}] == [value for value, _ in read_rows(path, at)]


# --- the process beside the leader ---


def spec_of(paths: RunPaths, **trackers: Any) -> RunSpec:
    """A task's spec in the run's folder."""
    spec = RunSpec(
        id=paths.id, name="t", run_dir=str(paths.root), work=Work(kind="task", target="m:C", params={"lr": 0.1}),
        batch="local", nodes=1, tasks_per_node=1, timeout_min=1, backend="gloo", python=sys.executable,
        trackers=trackers,
    )  # fmt: skip
    spec.write(paths.spec)
    return spec


async def attempt(
    paths: RunPaths,
    said: list[str],
    during: Callable[[], None] = lambda: None,
    limit_s: float = LIMIT_S,
    **trackers: Any,
) -> float:
    """One attempt's trackers from start to end; seconds that the end took."""
    beside = Tracking(spec_of(paths, **trackers), paths, 0, said.append)
    await beside.start()
    await asyncio.to_thread(during)
    beside.end("completed", "All steps are done.")
    began = time.monotonic()
    await beside.drain(limit_s)
    return time.monotonic() - began


def wait_for_no_child() -> None:
    """Wait until no tracker's process is below this one: a killed one takes a moment to end."""
    gone, end = False, time.monotonic() + LIMIT_S
    while not gone:
        assert time.monotonic() < end
        gone = not any(map(is_tracker, psutil.Process().children(recursive=True)))


def is_tracker(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and "trackers" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(("server", "limit_s"), [("refuses", LIMIT_S), ("is silent", 5.0)])
def test_a_server_that_is_away_holds_the_end_no_longer_than_its_limit(
    server: str, limit_s: float, paths: RunPaths, silent_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs gets the limit and not a request's 30 s; a refusal is at once. One sentence says so, no process is left."""
    pytest.importorskip("mlflow")
    monkeypatch.setattr(tracking, "_LATE_S", LIMIT_S)  # its libraries may take long to import
    row(paths, 1)
    said: list[str] = []
    uri = "http://127.0.0.1:9" if server == "refuses" else silent_server
    took = asyncio.run(attempt(paths, said, limit_s=limit_s, mlflow={"uri": uri}))

    assert server == "refuses" or took < sinks._REQUEST_S
    assert 1 == len(said), said
    assert said[0].startswith("tracker mlflow ")
    wait_for_no_child()


def test_trackers_that_do_not_answer_at_the_end_are_told(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that a busy node does not let run was killed, and nobody heard that metrics were missing."""
    monkeypatch.setattr(tracking, "_LATE_S", 0.1)
    begin = Tracking._begin

    async def stopped(self: Tracking) -> asyncio.subprocess.Process | None:
        process = await begin(self)
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        return process

    monkeypatch.setattr(Tracking, "_begin", stopped)
    said: list[str] = []
    asyncio.run(attempt(paths, said, limit_s=0.1, tensorboard={}))

    assert said == [f"the trackers may not have received all metrics: `{trackers.send_rest(paths)}` sends the rest"]
    wait_for_no_child()


def test_a_missing_package_is_said_and_left_out(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package the run goes on, and one sentence says what to install."""
    (paths.root / "wandb.py").write_text("raise ImportError('No module named wandb')\n")
    monkeypatch.setenv("PYTHONPATH", f"{paths.root}:{Path(__file__).parents[3]}")
    said: list[str] = []
    asyncio.run(attempt(paths, said, wandb={}))

    assert 1 == len(said), said
    assert "pip install 'ddp-launcher[wandb]'" in said[0]


@pytest.mark.parametrize(("deaths", "long_s"), [(1, 3600.0), (9, 3600.0), (5, 0.0)])
def test_a_process_that_dies_is_told_and_started_again(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, deaths: int, long_s: float
) -> None:
    """Killed for memory, say: nobody said a word, and the tracker got nothing for the rest of the attempt. Each time where it lived long."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    row(paths, 1)
    said: list[str] = []
    monkeypatch.setattr(tracking, "_PAUSES_S", (0.01, 0.01))
    monkeypatch.setattr(tracking, "_LONG_S", long_s)
    listen, died = Tracking._listen, []

    async def dying(self: Tracking, process: asyncio.subprocess.Process) -> None:
        if len(died) < deaths:
            died.append(process.pid)
            os.kill(process.pid, signal.SIGKILL)
        await listen(self, process)

    monkeypatch.setattr(Tracking, "_listen", dying)
    asyncio.run(attempt(paths, said, limit_s=LIMIT_S, tensorboard={}))

    again = "the trackers' process ended with SIGKILL and is started again; nothing is lost"
    if deaths == 1 or not long_s:
        assert said == [again] * deaths
        read = reader.EventAccumulator(str(paths.trackers / "tensorboard"))
        read.Reload()
        assert [e.step for e in read.Scalars("loss")] == [1]
    else:
        assert said[:-1] == [again] * 2
        assert said[-1].endswith(f"again and again: `{trackers.send_rest(paths)}` sends the rest")
    wait_for_no_child()


_LEADER = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-m", "launcher.node.sidecars.trackers", sys.argv[1], "0"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
time.sleep(3600)
"""


def test_the_leaders_death_ends_the_process(paths: RunPaths) -> None:
    """kill -9 of the leader leaves no tracker process behind."""
    spec_of(paths, tensorboard={})
    words = [sys.executable, "-c", _LEADER, str(paths.root)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as leader:
        assert leader.stdout is not None
        process = psutil.Process(int(leader.stdout.readline()))
        leader.kill()
    process.wait(LIMIT_S)

    assert not process.is_running()


def test_what_was_not_sent_can_be_sent_later(paths: RunPaths) -> None:
    """``python -m launcher.node.sidecars.trackers RUN`` brings an ended run's trackers up to date."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    spec_of(paths, tensorboard={})
    words = [sys.executable, "-m", "launcher.node.sidecars.trackers", str(paths.root)]
    early = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    row(paths, 1)
    paths.outcome.write_text(json.dumps({"state": "completed", "reason": "", "exit_code": 0}))
    late = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    read = reader.EventAccumulator(str(paths.trackers / "tensorboard"))
    read.Reload()

    assert (1, 0) == (early.returncode, late.returncode), early.stderr + late.stderr
    assert "tensorboard: up to date\n" == late.stdout
    assert [(1, 1.0)] == [(e.step, e.value) for e in read.Scalars("loss")]


def test_a_full_disk_is_not_filled_with_empty_files(paths: RunPaths) -> None:
    """A tracker is tried again every half minute, with a file of its own: none stays that could not be written."""
    pytest.importorskip("tensorboard")
    (sink,) = sinks.make_sinks({"tensorboard": {}}, trackers._about_run(spec_of(paths, tensorboard={}), paths, 0))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for full in (True, True, True, False):
        sink.open({}, lambda: None)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0 if full else before[0], before[1]))
        try:
            sink.write([MetricsRow(1, 1.0, {"loss": 1.0})])
        except OSError:
            assert full
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    sink.close(End("completed"))
    (written,) = (paths.trackers / "tensorboard").iterdir()
    assert written.stat().st_size > 0


def test_trackers_are_told_no_secret(paths: RunPaths) -> None:
    """Parameters and the job file leave this machine: what a name tells to be a secret is not in them."""
    work = Work(kind="script", target="t.py", args=["--password", "hunter1", "--api-key=hunter2", "--lr", "0.1"],
                params={"auth": {"token": "hunter3"}, "width": 8})  # fmt: skip
    spec = RunSpec(id="r", name="r", run_dir=str(paths.root), work=work, batch="local", nodes=1, tasks_per_node=1, timeout_min=5,
                   backend="gloo")  # fmt: skip
    paths.job.write_text(
        "args:\n- --password\n- hunter1\n- --api-key=hunter2\nparams:\n  auth:\n    token: hunter3\n  width: 8\n"
    )
    about = trackers._about_run(spec, paths, 0)

    assert "hunter" not in repr((about.params, about.tags, about.job))
    assert about.params["width"] == 8
    assert "width: 8" in about.job


def test_a_server_that_is_up_and_down_is_told_once(paths: RunPaths) -> None:
    """Each recovery had the next failure told anew: a rate limit made tens of thousands of warnings a day."""

    class Flapping(Recorder):
        tries = 0

        def write(self, rows: list[MetricsRow]) -> None:
            self.tries += 1
            self.fails = self.tries % 2
            super().write(rows)

    for step in range(8):
        row(paths, step, round_=step)  # each round is delivered by itself
    sink, said = Flapping(), []
    one = TrackerFeed(sink, paths, said.append)
    one.start()
    deadline = time.monotonic() + LIMIT_S
    while len(sink.rows) < 8 and time.monotonic() < deadline:
        time.sleep(0.01)
    one.finish(End("completed"))
    one.join(LIMIT_S)

    assert [s for s, _ in sink.rows] == list(range(8))
    assert ["tracker recorder failed and is retried, the run continues: the server is away"] == said


def test_a_fault_after_a_recovery_is_told_and_what_is_missing_at_the_end(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first fault, long mended, hides no later one; the command that sends the rest is told whatever was told before."""
    row(paths, 1)
    sink, said = Recorder(fails=1), []
    one = TrackerFeed(sink, paths, said.append)
    one.start()
    deadline = time.monotonic() + LIMIT_S
    while len(sink.rows) < 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    monkeypatch.setattr(trackers, "_WELL_S", 0.0)  # long after
    sink.fails = 10**6
    row(paths, 2)
    while len(said) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)

    assert len(said) >= 2
    assert "sends the rest" in (one.shortfall() or "")
    sink.fails = 0
    one.finish(End("completed"))
    one.join(LIMIT_S)
    assert one.shortfall() is None


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("acc@1", "acc_1"),
        ("loss/train v2.0-a", "loss/train v2.0-a"),
        ("µ(x)", "µ_x_"),
        ("grad_norm//backbone/", "grad_norm/backbone"),
        ("/loss", "loss"),
        ("../../.loss", "loss"),
        ("a/./b/../c", "a/c"),
        ("..", "_"),
        ("g/" * 200, "g/" * 124 + "g"),
    ],
)
def test_mlflow_gets_names_that_it_takes(name: str, taken: str) -> None:
    """One name that it refuses would keep every metric from it, for ever."""
    assert sinks._allowed(name) == taken


class MlflowClient:
    """A server's client: it remembers parameters and metrics, and refuses what MLflow refuses of them."""

    def __init__(self) -> None:
        self.params: dict[str, str] = {}
        self.metrics: list[tuple[str, float]] = []

    def log_batch(self, run: str, *, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
        from mlflow.exceptions import MlflowException

        keys = [param.key for param in params]
        if len(set(keys)) < len(keys):
            raise MlflowException(f"Duplicate parameter keys have been submitted: {keys}", 1000)
        if any(self.params.setdefault(param.key, param.value) != param.value for param in params):
            raise MlflowException("Changing param values is not allowed.", 1000)
        self.metrics += [(metric.key, metric.value) for metric in metrics]

    def get_run(self, run: str) -> Any:
        return SimpleNamespace(info=SimpleNamespace(artifact_uri="s3://bucket"))


def mlflow_sink(client: Any, **params: Any) -> Any:
    """MLflow's sink, as it is when its run has begun."""
    spec = SimpleNamespace(id="r", name="r")
    tags = dict.fromkeys(sinks._OF_ATTEMPT, "x")
    about = SimpleNamespace(spec=spec, script=False, tags=tags, params=params, job="name: t\n")
    (sink,) = sinks.make_sinks({"mlflow": None}, cast(Any, about))
    vars(sink).update(_client=client, _run="1")
    return sink


def test_names_that_differ_in_a_forbidden_character_stay_apart() -> None:
    """Two parameters got one name in MLflow, which refused them, and with them every metric; two metrics became one curve."""
    pytest.importorskip("mlflow")
    client = MlflowClient()
    sink = mlflow_sink(client, **{"a@b": 1, "a#b": 2, "a_b": 3, "x" * 300: 4, "x" * 301: 5})
    sink._describe()
    sink.write([MetricsRow(1, 1.0, {"acc@1": 0.1, "acc#1": 0.2})])
    sink.write([MetricsRow(2, 2.0, {"acc#1": 0.4, "acc@1": 0.3})])

    cut = "x" * 242 + "_2"
    assert client.params == {"a_b": "3", "a_b_2": "1", "a_b_3": "2", "x" * 250: "4", cut: "5"}
    assert client.metrics == [("acc_1", 0.1), ("acc_1_2", 0.2), ("acc_1_2", 0.4), ("acc_1", 0.3)]


def test_a_parameter_that_mlflow_has_with_another_value_is_left_out() -> None:
    """An attempt that came no further than its parameters, and a resubmission with another value: no metric arrived any more."""
    pytest.importorskip("mlflow")
    client, said = MlflowClient(), list[str]()
    mlflow_sink(client, lr=0.1)._describe()
    sink = mlflow_sink(client, lr=0.2, wd=0.5)
    sink.say = said.append
    sink._describe()

    assert client.params == {"lr": "0.1", "wd": "0.5"}
    assert said == [
        "tracker mlflow does not take the param lr, which is left out: Changing param values is not allowed."
    ]


def test_an_experiment_that_another_point_of_the_sweep_creates_is_used() -> None:
    """The point was told that the tracker had failed, and a script's workers no longer waited for the id of its MLflow run."""
    errors = pytest.importorskip("mlflow.exceptions")

    class CreatedMeanwhile:
        looks = 0

        def get_experiment_by_name(self, title: str) -> Any:
            self.looks += 1
            return SimpleNamespace(experiment_id="7") if self.looks > 1 else None

        def create_experiment(self, title: str) -> str:
            raise errors.MlflowException(f"Experiment(name={title}) already exists.", 3001)

        def search_runs(self, experiments: list[str], *args: Any, **how: Any) -> list[Any]:
            return [SimpleNamespace(info=SimpleNamespace(run_id=f"of {experiments}"))]

    assert mlflow_sink(CreatedMeanwhile())._found_or_new() == "of ['7']"


def test_a_store_of_files_that_is_out_of_order_keeps_no_metric_from_mlflow() -> None:
    """A server without access to its bucket got nothing at all, for ever; one that is away as a whole is tried again."""
    pytest.importorskip("mlflow")
    away = False

    class WithoutFiles(MlflowClient):
        def get_run(self, run: str) -> Any:
            return SimpleNamespace(info=SimpleNamespace(artifact_uri="mlflow-artifacts:/1"))

        def log_text(self, *args: str) -> None:
            raise OSError("500 Server Error: Internal Server Error\n<html>")

        def log_batch(self, run: str, **sent: Any) -> None:
            if away and "tags" in sent:
                raise ConnectionError("refused")
            super().log_batch(run, **sent)

    said: list[str] = []
    sink = mlflow_sink(WithoutFiles(), lr=0.1)
    sink.say = said.append
    sink._describe()
    assert said == [
        "job.yaml is left out of tracker mlflow, which could not store it: 500 Server Error: Internal Server Error"
    ]

    away = True
    with pytest.raises(ConnectionError):
        sink._describe()
    assert len(said) == 1


def test_a_metric_that_mlflow_refuses_keeps_no_other_from_it() -> None:
    """It is left out and named once, in whatever batch it comes; where the whole run is refused, nothing is left out and all is tried again."""
    errors = pytest.importorskip("mlflow.exceptions")
    sent: list[tuple[str, int]] = []
    said: list[str] = []
    deleted = False

    class Client:
        def log_batch(self, run: str, *, metrics: Any = (), tags: Any = ()) -> None:
            if deleted or any(metric.key == "odd" for metric in metrics):
                raise errors.MlflowException("Invalid value for parameter 'name'", 1000)
            sent.extend((metric.key, metric.step) for metric in metrics)

    about = SimpleNamespace(script=False, tags=dict.fromkeys(sinks._OF_ATTEMPT, "x"))
    (sink,) = sinks.make_sinks({"mlflow": None}, cast(Any, about))
    sink.say = said.append
    vars(sink).update(_client=Client(), _run="1")
    for step in (1, 2):
        sink.write([MetricsRow(step, 1.0, {"loss": 0.5, "odd": 1.0, "acc": 0.1})])

    assert sent == [("loss", 1), ("acc", 1), ("loss", 2), ("acc", 2)]
    assert len(said) == 1
    assert "the metric odd" in said[0]

    deleted = True
    with pytest.raises(errors.MlflowException):
        sink.write([MetricsRow(3, 1.0, {"loss": 0.5})])
    deleted = False
    sink.write([MetricsRow(3, 1.0, {"loss": 0.5})])
    assert sent[-1] == ("loss", 3)
